// Optimizer state on a disk: the same bits as in memory, whatever ends the run.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/sanitizers.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "expect_error.h"
#include "io/file.h"
#include "platform/memory_info.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

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

void offload(RunSettings* spec, const fs::path& folder) {
  spec->placement.optimizer_device = OffloadDevice::kNvme;
  spec->placement.offload_dir = folder;
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
  run.spec.precision.dtype = from_word(GetParam().dtype);
  run.spec.optimizer.form = from_word(GetParam().optim);
  run.spec.sharding.stage = GetParam().ranks.stage;
  run.spec.sharding.gather_schedule = from_word(GetParam().ranks.schedule);
  run.spec.saving.steps = 3;
  run.run();
  const fs::path whole = run.output();

  SavingRun on_disk = run;
  offload(&on_disk.spec, run.folder() / "offload");
  on_disk.spec.output_dir = run.folder() / "on disk";
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
    resumed.spec.output_dir = to_disk ? whole : on_disk.output();
    resumed.interrupt_at(3, to_disk ? "to disk" : "to memory");
    resumed.spec.resume = parse_resume("auto");
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

// On a disk that has room for the state, or for the model and the rest of the state, but not for both.
TEST(Offload, TheFinishedModelTakesTheRoomOfTheMoments) {
  TinyRun tiny(config_to_fit());
  tiny.spec.saving.strategy = SaveStrategy::kNo;
  tiny.train();
  const std::string whole = read_text_file(fs::path(tiny.spec.output_dir) / "model.safetensors");
  const TestFolder disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=200m") != 0) {
    GTEST_SKIP() << "mounting a file system is not permitted here";
  }
  offload(&tiny.spec, disk / "offload");
  tiny.spec.output_dir = disk / "out";
  const DiskPlan plan = tiny.train().plan.disk;
  EXPECT_GT(plan.discarded_bytes, plan.model_bytes);
  EXPECT_EQ(read_text_file(disk / "out/model.safetensors"), whole);
  fs::remove_all(disk / "out");

  constexpr int64_t kOtherFiles = 1 << 20;  // configuration, tokenizer, reports
  ASSERT_GT(plan.model_bytes, 4 * kOtherFiles);
  const std::string size = fmt::format("size={}", plan.offload_bytes + kOtherFiles);
  ASSERT_EQ(::mount("tmpfs", disk.path().c_str(), "tmpfs", MS_REMOUNT, size.c_str()), 0);
  tiny.train();
  EXPECT_EQ(read_text_file(disk / "out/model.safetensors"), whole);
  ::umount2(disk.path().c_str(), MNT_DETACH);
}

TEST(Fit, ChoosesWhatFitsWithTheBitsOfTheRunInMemory) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  for (const Ranks ranks : {Ranks{1, 1}, Ranks{2, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks.world_size()));
    SavingRun run(ranks, config_to_fit());
    run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
    run.spec.batch.max_steps = 2;
    run.spec.saving.steps = 2;
    run.run();
    SavingRun fitted = run;
    fitted.spec.output_dir = run.folder() / "fitted";
    fitted.spec.placement.offload_dir = run.folder() / "offload";
    fitted.spec.placement.fit = true;
    fitted.spec.placement.fit_memory_bytes = resident_bytes() + (50 << 20);
    const RecordingObserver seen = fitted.run();
    const nlohmann::json arguments = arguments_of(fitted.output());
    EXPECT_EQ(arguments["fit"], true);
    EXPECT_EQ(arguments["optim"], "adamw_torch") << "the exact form fits";
    if (ranks.world_size() == 1) {
      EXPECT_TRUE(arguments["optimizer_in_backward"] == true ||
                  arguments["offload_optimizer_device"] == "nvme");
      EXPECT_LE(seen.plan.memory.step_memory().node_bytes(), *fitted.spec.placement.fit_memory_bytes);
    }
    EXPECT_EQ(read_tensors(fitted.output() / "model.safetensors"),
              read_tensors(run.output() / "model.safetensors"));
  }
}

TEST(Fit, ARefusalSaysWhatWouldFit) {
  SavingRun run({}, config_to_fit());
  run.spec.placement.fit = true;
  run.spec.placement.offload_dir = run.folder() / "offload";
  run.spec.placement.fit_memory_bytes = resident_bytes() + (1 << 20);
  expect_error(ExitCode::kBadConfig,
               {"fit: no form of the run fits into", "the least memory takes --optim adamw_8bit"},
               [&] { run.run(); });
}

TEST(Fit, AResumedRunKeepsItsOptimizerAndItsClipping) {
  SavingRun run({}, config_to_fit());
  run.spec.optimizer.form = OptimizerForm::kAdamWHalf;
  run.spec.placement.optimizer_in_backward = true;
  run.spec.clipping.mode = ClipMode::kLayer;
  run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
  run.spec.batch.max_steps = 2;
  run.run();
  run.interrupt_at(1, "resumed");
  SavingRun resumed = run;
  resumed.spec.optimizer.form = OptimizerForm::kAdamW;
  resumed.spec.clipping.mode = ClipMode::kGlobal;
  resumed.spec.placement.optimizer_in_backward = false;
  resumed.spec.placement.fit = true;
  resumed.spec.placement.offload_dir = run.folder() / "offload";
  resumed.spec.resume = parse_resume("auto");
  const RecordingObserver seen = resumed.run();
  EXPECT_EQ(seen.resumed_step, 1);
  EXPECT_EQ(seen.differences, "");
  const nlohmann::json arguments = arguments_of(resumed.output());
  EXPECT_EQ(arguments["optim"], "adamw_bf16");
  EXPECT_EQ(arguments["clip_mode"], "layer");
  EXPECT_EQ(arguments["optimizer_in_backward"], true) << "which this clipping needs";
}

// Moves everything that can be on a disk there, in files that steps read and write in parts.
void offload_all(RunSettings* spec, const fs::path& folder) {
  offload(spec, folder);
  spec->placement.param_device = OffloadDevice::kNvme;
  spec->placement.optimizer_in_backward = true;
  spec->placement.merge_micro_batches = AutoChoice::kAlways;
  spec->placement.gradient_checkpointing = true;
  spec->placement.checkpointing_mode = CheckpointingMode::kOffload;
  spec->precision.dtype = DType::kBF16;
}

SavingRun run_of_layers() {
  ModelConfig config = some_chunks_config();
  config.num_hidden_layers = 5;
  SavingRun run({}, config);
  run.spec.precision.dtype = DType::kBF16;
  run.spec.saving.steps = 2;
  return run;
}

TEST(Offload, EveryStepReportsWhatItMoves) {
  SavingRun run = run_of_layers();
  const RecordingObserver in_memory = run.run();
  EXPECT_FALSE(in_memory.steps.back().disk);
  EXPECT_FALSE(in_memory.summary.disk);
  run.spec.output_dir = run.folder() / "on disk";
  offload_all(&run.spec, run.folder() / "offload");
  const RecordingObserver on_disk = run.run();
  // Twice the state (a step is computed twice for its norm, but updated once), and weights and inputs.
  const int64_t num_parameters = on_disk.plan.num_parameters;
  for (const StepMetrics& step : on_disk.steps) {
    ASSERT_TRUE(step.disk);
    EXPECT_GT(step.disk->read_bytes, 10 * num_parameters);
    EXPECT_GT(step.disk->written_bytes, 10 * num_parameters);
    EXPECT_LT(step.disk->read_bytes, 40 * num_parameters);
    EXPECT_GT(step.disk->state_wait_s, 0);
    EXPECT_GT(step.disk->weights_wait_s, 0);
    EXPECT_GT(step.disk->inputs_wait_s, 0);
    EXPECT_EQ(step.times.disk_s, step.disk->wait_s());
    EXPECT_NEAR(step.times.listed_s() + step.times.other_s, step.step_time_s, 1e-6 + 0.01 * step.step_time_s);
  }
  ASSERT_TRUE(on_disk.summary.disk);
  EXPECT_GT(on_disk.summary.disk->step.written_bytes, 10 * num_parameters);
  EXPECT_GT(on_disk.summary.times.steps.disk_s, 0);
}

// Open files of this process that had this path and have lost their name.
std::vector<int> unnamed_files(const fs::path& path) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!error && target == path.string() + " (deleted)") {
      found.push_back(std::stoi(entry.path().filename().string()));
    }
  }
  return found;
}

struct OffloadFault {
  const char* file;
  const char* cause;
  void (*strike)(int fd);

  friend void PrintTo(const OffloadFault& of, std::ostream* out) { *out << of.file << ": " << of.cause; }
};

class OffloadFaults : public testing::TestWithParam<OffloadFault> {};

// Makes the descriptor `fd` refer to another file.
void replace_file(int fd, const char* path, int flags) {
  const UniqueFd other(::open(path, flags | O_CLOEXEC));
  ASSERT_EQ(::dup2(other.get(), fd), fd);
}
// No memory is at the offsets of a small file.
void fail_transfers(int fd) { replace_file(fd, "/proc/self/mem", O_RDWR); }
void fill_disk(int fd) { replace_file(fd, "/dev/full", O_WRONLY); }
void cut_off(int fd) {
  const UniqueFd again(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::ftruncate(again.get(), 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Files, OffloadFaults,
                         testing::Values(OffloadFault{"state", "Input/output error", fail_transfers},
                                         OffloadFault{"state", "", fill_disk},
                                         OffloadFault{"weights", "Input/output error", fail_transfers},
                                         OffloadFault{"weights", "the file ends early", cut_off},
                                         OffloadFault{"inputs", "Input/output error", fail_transfers},
                                         OffloadFault{"frozen", "Input/output error", fail_transfers},
                                         OffloadFault{"frozen", "the file ends early", cut_off}));

TEST_P(OffloadFaults, EndTheRunInOneLineAndLeaveItsCheckpoints) {
  SavingRun run = run_of_layers();
  const bool is_lora = std::string_view(GetParam().file) == "frozen";
  if (is_lora) {
    run.spec.lora.finetuning_type = FinetuningType::kLora;
    run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
  }
  run.run();
  SavingRun broken = run;
  broken.spec.output_dir = run.folder() / "broken";
  const fs::path file = run.folder() / "offload" / fmt::format("rank-0.{}", GetParam().file);
  offload_all(&broken.spec, file.parent_path());
  if (is_lora) broken.spec.placement.optimizer_in_backward = false;
  expect_error(ExitCode::kIoError, {file.native(), " bytes at ", " failed: ", GetParam().cause}, [&] {
    broken.run({}, [&](const StepMetrics& step) {
      if (step.step != 4) return;
      const std::vector<int> files = unnamed_files(file);
      ASSERT_FALSE(files.empty());
      for (const int fd : files) GetParam().strike(fd);
    });
  });
  broken.spec.resume = parse_resume("auto");
  const RecordingObserver resumed = broken.run();
  EXPECT_GE(resumed.resumed_step, 2);
  EXPECT_LE(resumed.resumed_step, 4);
  expect_same_run(broken.output(), run.output());
}

// Kills it while checkpoint 4 is written, before the next step or in parallel with it.
TEST(Offload, AKilledRunLeavesNothingOnTheDiskAndResumes) {
  SavingRun run = run_of_layers();
  run.run();
  for (const auto& [async_save, microseconds] : {std::pair(false, 0), {false, 2000}, {true, 1000}}) {
    SCOPED_TRACE(fmt::format("async_save {}, {} us", async_save, microseconds));
    SavingRun killed = run;
    killed.spec.output_dir = run.folder() / fmt::format("killed {} {}", async_save, microseconds);
    killed.spec.saving.in_background = async_save;
    offload_all(&killed.spec, run.folder() / "offload");
    const auto train = [&, delay = std::chrono::microseconds(microseconds)] {
      killed.run({}, [&](const StepMetrics& step) {
        if (step.step != 4) return;
        std::thread([&] {
          std::this_thread::sleep_for(delay);
          std::raise(SIGKILL);
        }).detach();
      });
      std::_Exit(0);
    };
    EXPECT_EXIT(train(), testing::KilledBySignal(SIGKILL), "");
    EXPECT_TRUE(fs::is_empty(run.folder() / "offload"));
    killed.spec.resume = parse_resume("auto");
    const int64_t resumed_step = killed.run().resumed_step;
    // In the background not even that of step 2 may be complete.
    EXPECT_TRUE(resumed_step == 2 || resumed_step == 4 || (async_save && resumed_step == -1)) << resumed_step;
    expect_same_run(killed.output(), run.output());
  }
}

TEST(Offload, ADiskWithoutRoomIsRefusedAtTheStart) {
  TinyRun tiny(some_chunks_config());
  const TestFolder disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "mounting a file system is not permitted here";
  }
  offload(&tiny.spec, disk / "offload");
  expect_error(
      ExitCode::kBadConfig,
      {(disk / "offload").native(), "not enough disk space for what a node keeps there", "2.00 MiB free"},
      [&] { tiny.train(); });
  ::umount2(disk.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace tessera
