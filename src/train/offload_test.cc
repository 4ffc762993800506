// Optimizer state on a disk: the same bits as in memory, whatever ends the run.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "base/unique_fd.h"
#include "expect_error.h"
#include "io/file.h"
#include "platform/memory_info.h"
#include "support/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// 280,000 parameters: more chunks of a state file than its ring has, on one rank and on four.
ModelConfig some_chunks_config() {
  ModelConfig config = tiny_config();
  config.vocab_size = 900;
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.head_dim = 24;
  return config;
}

void offload(TrainingArguments* args, const fs::path& folder) {
  args->offload_optimizer_device = "nvme";
  args->offload_dir = folder;
}

struct OffloadCase {
  RanksCase ranks;
  std::string dtype;
  std::string optim;

  std::string name() const { return ranks.name() + dtype + "_" + optim; }
  friend void PrintTo(const OffloadCase& of, std::ostream* out) { *out << of.name(); }
};

class OffloadedOptimizer : public testing::TestWithParam<OffloadCase> {};

INSTANTIATE_TEST_SUITE_P(Cases, OffloadedOptimizer,
                         testing::Values(OffloadCase{{{1, 1}, 0, "auto"}, "bfloat16", "adamw_torch"},
                                         OffloadCase{{{1, 1}, 0, "auto"}, "float32", "adamw_bf16"},
                                         OffloadCase{{{1, 3}, 2, "auto"}, "bfloat16", "adamw_8bit"},
                                         OffloadCase{{{2, 2}, 0, "auto"}, "bfloat16", "lion_32bit"},
                                         OffloadCase{{{2, 1}, 3, "per_layer"}, "bfloat16", "adamw_torch"}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(OffloadedOptimizer, HasTheBitsOfOneInMemory) {
  SavingRun run(GetParam().ranks.ranks, some_chunks_config());
  run.args.dtype = GetParam().dtype;
  run.args.optim = GetParam().optim;
  run.args.zero_stage = GetParam().ranks.stage;
  run.args.gather_schedule = GetParam().ranks.schedule;
  run.args.save_steps = 3;
  run.run();
  const fs::path whole = run.output();

  SavingRun on_disk = run;
  offload(&on_disk.args, run.folder() / "offload");
  on_disk.args.output_dir = run.folder() / "on disk";
  const RecordingObserver seen = on_disk.run();
  expect_same_run(on_disk.output(), whole);
  EXPECT_GT(seen.plan.disk.offload_bytes, 0);
  for (const MemoryItem& item : seen.plan.memory.items) {
    if (item.kind == MemoryKind::kOptimizer) {
      EXPECT_EQ(item.name, "buffers for state on disk");
    }
  }
  EXPECT_TRUE(fs::is_empty(run.folder() / "offload"));

  // From memory to disk and back.
  for (const bool to_disk : {true, false}) {
    SavingRun resumed = to_disk ? on_disk : run;
    resumed.args.output_dir = to_disk ? whole : on_disk.output();
    resumed.interrupt_at(3, to_disk ? "to disk" : "to memory");
    resumed.args.resume_from_checkpoint = "auto";
    const RecordingObserver rest = resumed.run();
    EXPECT_EQ(rest.resumed_step, 3);
    EXPECT_EQ(rest.differences, "");
    expect_same_run(resumed.output(), whole);
  }
}

nlohmann::json arguments_of(const fs::path& output) { return read_json(output / "training_args.json"); }

// 4 million parameters: 70 MB in memory, half of that on a disk.
ModelConfig config_to_fit() {
  ModelConfig config = some_chunks_config();
  config.vocab_size = 4000;
  config.hidden_size = 256;
  config.intermediate_size = 1024;
  config.head_dim = 64;
  return config;
}

TEST(Fit, ChoosesWhatFitsWithTheBitsOfTheRunInMemory) {
  for (const Ranks ranks : {Ranks{1, 1}, Ranks{2, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks.world_size()));
    SavingRun run(ranks, config_to_fit());
    run.args.merge_micro_batches = "always";
    run.args.max_steps = 2;
    run.args.save_steps = 2;
    run.run();
    SavingRun fitted = run;
    fitted.args.output_dir = run.folder() / "fitted";
    fitted.args.offload_dir = run.folder() / "offload";
    fitted.args.fit = true;
    fitted.args.fit_memory = fmt::format("{}B", resident_bytes() + (50 << 20));
    const RecordingObserver seen = fitted.run();
    const nlohmann::json arguments = arguments_of(fitted.output());
    EXPECT_EQ(arguments["fit"], true);
    EXPECT_EQ(arguments["optim"], "adamw_torch") << "the exact form fits";
    if (ranks.world_size() == 1) {
      EXPECT_TRUE(arguments["optimizer_in_backward"] == true ||
                  arguments["offload_optimizer_device"] == "nvme");
      EXPECT_LE(seen.plan.memory.step_memory().node_bytes(), parse_bytes(fitted.args.fit_memory));
    }
    EXPECT_EQ(read_tensors(fitted.output() / "model.safetensors"),
              read_tensors(run.output() / "model.safetensors"));
  }
}

TEST(Fit, ARefusalSaysWhatWouldFit) {
  SavingRun run({}, config_to_fit());
  run.args.fit = true;
  run.args.offload_dir = run.folder() / "offload";
  run.args.fit_memory = fmt::format("{}B", resident_bytes() + (1 << 20));
  expect_error(ExitCode::kBadConfig,
               {"fit: no form of the run fits into", "the least memory takes --optim adamw_8bit"},
               [&] { run.run(); });
}

TEST(Fit, AResumedRunKeepsItsOptimizerAndItsClipping) {
  SavingRun run({}, config_to_fit());
  run.args.optim = "adamw_bf16";
  run.args.optimizer_in_backward = true;
  run.args.clip_mode = "layer";
  run.args.merge_micro_batches = "always";
  run.args.max_steps = 2;
  run.run();
  run.interrupt_at(1, "resumed");
  SavingRun resumed = run;
  resumed.args.optim = "adamw_torch";
  resumed.args.clip_mode = "global";
  resumed.args.optimizer_in_backward = false;
  resumed.args.fit = true;
  resumed.args.offload_dir = run.folder() / "offload";
  resumed.args.resume_from_checkpoint = "auto";
  const RecordingObserver seen = resumed.run();
  EXPECT_EQ(seen.resumed_step, 1);
  EXPECT_EQ(seen.differences, "");
  const nlohmann::json arguments = arguments_of(resumed.output());
  EXPECT_EQ(arguments["optim"], "adamw_bf16");
  EXPECT_EQ(arguments["clip_mode"], "layer");
  EXPECT_EQ(arguments["optimizer_in_backward"], true) << "which this clipping needs";
}

// Open files of this process that were in `folder` and have no name any more.
std::vector<int> unnamed_files(const fs::path& folder) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!error && target.starts_with(folder.string()) && target.ends_with(" (deleted)")) {
      found.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return found;
}

TEST(Offload, AnErrorOfTheDiskEndsTheRunAndLeavesItsCheckpoints) {
  SavingRun run({}, some_chunks_config());
  run.args.save_steps = 2;
  run.run();
  const fs::path whole = run.output();
  SavingRun broken = run;
  broken.args.output_dir = run.folder() / "broken";
  const fs::path folder = run.folder() / "offload";
  offload(&broken.args, folder);
  expect_error(ExitCode::kIoError, {(folder / "rank-0.state").native(), " bytes at ", " failed: "}, [&] {
    broken.run({}, [&](const StepMetrics& step) {
      if (step.step != 4) return;
      const std::vector<int> files = unnamed_files(folder);
      ASSERT_EQ(files.size(), 1u);
      // Writes find no space, reads are not possible.
      const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
      ASSERT_EQ(::dup2(full.get(), files[0]), files[0]);
    });
  });
  broken.args.resume_from_checkpoint = "auto";
  const RecordingObserver resumed = broken.run();
  EXPECT_EQ(resumed.resumed_step, 2);
  expect_same_run(broken.output(), whole);
}

TEST(Offload, AKilledRunLeavesNothingOnTheDiskAndResumes) {
  SavingRun run({}, some_chunks_config());
  run.args.save_steps = 2;
  run.run();
  SavingRun killed = run;
  killed.args.output_dir = run.folder() / "killed";
  offload(&killed.args, run.folder() / "offload");
  const auto train = [&] {
    killed.run({}, [](const StepMetrics& step) {
      if (step.step == 5) std::raise(SIGKILL);
    });
    std::_Exit(0);
  };
  EXPECT_EXIT(train(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_TRUE(fs::is_empty(run.folder() / "offload"));
  killed.args.resume_from_checkpoint = "auto";
  EXPECT_GE(killed.run().resumed_step, 2);
  expect_same_run(killed.output(), run.output());
}

TEST(Offload, ADiskWithoutRoomIsRefusedAtTheStart) {
  TinyRun tiny(some_chunks_config());
  const TestFolder disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "mounting a file system is not permitted here";
  }
  offload(&tiny.args, disk / "offload");
  expect_error(
      ExitCode::kBadConfig,
      {(disk / "offload").native(), "not enough disk space for what a node keeps there", "2.00 MiB free"},
      [&] { tiny.train(); });
  ::umount2(disk.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace tessera
