// The files of a run in output_dir.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "expect_error.h"
#include "io/file.h"
#include "support/file_size_limit.h"
#include "support/train/train_test_support.h"
#include "train/evaluation/best_model.h"
#include "train/output/output_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(RunOutput, IsAModelFolderWithReports) {
  TinyRun tiny;
  tiny.train();
  EXPECT_THAT(
      names_in(tiny.output()),
      UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors", "trainer_state.json",
                           "training_args.json", "metrics.jsonl", "events.jsonl", "memory.json"));
  EXPECT_EQ(read_json(tiny.output() / "config.json").at("torch_dtype"), "float32");
  EXPECT_EQ(read_json(tiny.output() / "training_args.json").at("max_steps"), 6);
}

TEST(RunOutput, SaveDtypeDecidesTheTypeOfTheFile) {
  TinyRun tiny;
  tiny.spec.precision.save_dtype = DType::kBF16;
  tiny.train();
  const SafetensorsFile file = SafetensorsFile::open(tiny.output() / "model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(entry.dtype, DType::kBF16) << entry.name;
}

TEST(RunOutput, MetricsHaveALinePerStep) {
  TinyRun tiny;
  const RecordingObserver run = tiny.train();
  const auto lines = read_json_lines(tiny.output() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_EQ(lines[i].at("loss"), run.steps[i].loss);
    EXPECT_EQ(lines[i].at("grad_norm"), run.steps[i].grad_norm);
    EXPECT_EQ(lines[i].at("num_tokens"), run.steps[i].num_tokens);
    EXPECT_EQ(lines[i].at("num_target_tokens"), run.steps[i].num_target_tokens);
    EXPECT_GT(lines[i].at("tokens_per_second"), 0);
    EXPECT_GT(lines[i].at("step_time_s"), 0);
  }
}

std::vector<std::string> event_names(const fs::path& output) {
  std::vector<std::string> names;
  for (const nlohmann::json& event : read_json_lines(output / "events.jsonl"))
    names.push_back(event.at("event"));
  return names;
}

TEST(RunOutput, EventsTellWhatHappenedBesidesSteps) {
  TinyRun tiny;
  tiny.spec.data.eval_dataset = tiny.spec.data.dataset;
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 4;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 4;
  tiny.spec.reporting.logging_steps = 3;
  tiny.spec.saving.in_background = false;
  const RecordingObserver run = tiny.train(2, {}, [](const StepMetrics& metrics) {
    if (metrics.step == 2) log_warning("the text of a \xff warning");
  });
  const auto events = read_json_lines(tiny.output() / "events.jsonl");
  EXPECT_THAT(event_names(tiny.output()),
              ElementsAre("start", "memory", "warning", "log", "evaluation", "checkpoint", "log",
                          "evaluation", "checkpoint", "log", "finish"));
  EXPECT_EQ(events[0].at("max_steps"), 6);
  EXPECT_EQ(events[0].at("arguments").at("save_steps"), 4);
  EXPECT_EQ(events[0].at("node_bytes"), run.plan.memory.node_bytes());
  EXPECT_EQ(events[2].at("message"), "the text of a \\xff warning");
  EXPECT_EQ(events[2].at("step"), 2);
  EXPECT_EQ(events[4].at("step"), 4);
  EXPECT_GT(events[4].at("eval_loss"), 0);
  EXPECT_EQ(events[5].at("folder"), (tiny.output() / "checkpoint-4").string());
  EXPECT_EQ(events[10].at("stop_signal"), 0);
  EXPECT_EQ(events[10].at("train_loss"), run.summary.train_loss);
  for (const nlohmann::json& event : events) EXPECT_GT(event.at("time"), 1.7e9) << event;
}

TEST(RunOutput, EventsContinueWhereARunIsResumed) {
  TinyRun tiny;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 2;
  tiny.spec.reporting.logging_steps = 2;
  tiny.spec.saving.in_background = false;
  tiny.train();
  fs::remove_all(tiny.output() / "checkpoint-6");
  fs::remove_all(tiny.output() / "checkpoint-4");
  tiny.spec.resume = parse_resume((tiny.output() / "checkpoint-2").string());
  tiny.train();
  EXPECT_THAT(event_names(tiny.output()),
              ElementsAre("start", "memory", "log", "checkpoint", "start", "resume", "memory", "log",
                          "checkpoint", "log", "checkpoint", "log", "finish"));
}

TEST(RunOutput, TrainerStateTellsTheWholeRun) {
  TinyRun tiny;
  const RecordingObserver run = tiny.train();
  const nlohmann::json state = read_json(tiny.output() / "trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 6);
  EXPECT_EQ(state.at("max_steps"), 6);
  EXPECT_EQ(state.at("num_train_epochs"), 2);
  EXPECT_EQ(state.at("train_batch_size"), 2);
  EXPECT_EQ(state.at("num_input_tokens_seen"), run.summary.num_tokens);
  ASSERT_EQ(state.at("log_history").size(), 4u);
  EXPECT_EQ(state.at("log_history")[0].at("step"), 2);
  EXPECT_EQ(state.at("log_history")[3].at("train_loss"), run.summary.train_loss);
  // 6 x 198 tokens x parameters without the input embedding.
  const ParameterLayout layout = parameter_layout(tiny_config());
  const int64_t counted = layout.num_parameters() - 13 * 12;
  EXPECT_DOUBLE_EQ(state.at("total_flos"), 6.0 * 198 * static_cast<double>(counted));
  EXPECT_TRUE(state.at("stateful_callbacks").at("TrainerControl").at("args").at("should_training_stop"));
}

TEST(Checkpoints, AreModelFoldersOfTheirStep) {
  TinyRun tiny;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 4;
  const RecordingObserver run = tiny.train();
  EXPECT_EQ(run.checkpoints,
            (std::vector<fs::path>{tiny.output() / "checkpoint-4", tiny.output() / "checkpoint-6"}));
  EXPECT_THAT(names_in(tiny.output() / "checkpoint-4"),
              UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors",
                                   "trainer_state.json", "training_args.json", "tessera"));
  EXPECT_EQ(read_json(tiny.output() / "checkpoint-4" / "trainer_state.json").at("global_step"), 4);
  EXPECT_EQ(read_tensors(tiny.output() / "checkpoint-6"), read_tensors(tiny.output()));
  const auto weights = read_tensors(tiny.output() / "checkpoint-4");
  tiny.spec.batch.max_steps = 4;
  tiny.train();
  EXPECT_EQ(read_tensors(tiny.output()), weights);
}

TEST(Checkpoints, OnlyTheNewestStayWithinTheLimit) {
  TinyRun tiny;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 1;
  tiny.spec.saving.total_limit = 2;
  tiny.train();
  const std::vector<std::string> names = names_in(tiny.output());
  EXPECT_THAT(names, Contains("checkpoint-5"));
  EXPECT_THAT(names, Contains("checkpoint-6"));
  EXPECT_EQ(
      std::count_if(names.begin(), names.end(), [](auto& name) { return name.starts_with("checkpoint-"); }),
      2);
}

// Expects what a run of 6 steps that saves every other step leaves if checkpoint-2 failed.
void expect_all_but_the_first(const TinyRun& tiny, const RecordingObserver& run) {
  ASSERT_EQ(run.failures.size(), 1u);
  EXPECT_THAT(run.failures[0], testing::HasSubstr("checkpoint-2"));
  EXPECT_THAT(run.failures[0], testing::HasSubstr("File too large"));
  EXPECT_EQ(run.checkpoints,
            (std::vector<fs::path>{tiny.output() / "checkpoint-4", tiny.output() / "checkpoint-6"}));
  EXPECT_EQ(run.steps.size(), 6u);
  EXPECT_FALSE(fs::exists(tiny.output() / "checkpoint-2"));
  for (const std::string& name : names_in(tiny.output()))
    EXPECT_FALSE(name.starts_with(".unfinished")) << name;
}

TEST(Checkpoints, OneThatCannotBeBegunDoesNotEndTheRun) {
  for (const int world_size : {1, 3}) {
    TinyRun tiny;
    tiny.spec.saving.strategy = SaveStrategy::kSteps;
    tiny.spec.saving.steps = 2;
    tiny.spec.batch.rows_per_device = 1;
    const FileSizeLimit disk;
    const auto fill_disk = [&](const StepMetrics& metrics) {
      if (metrics.step == 2) disk.set(64);
      if (metrics.step == 3) disk.lift();
    };
    const std::vector<RecordingObserver> ranks = train_ranks(tiny.spec, {1, world_size}, 1, {}, fill_disk);
    expect_all_but_the_first(tiny, ranks[0]);
    for (size_t rank = 1; rank < ranks.size(); ++rank) EXPECT_TRUE(ranks[rank].failures.empty());
  }
}

TEST(Checkpoints, OneThatFailsWhileItIsWrittenDoesNotEndTheRun) {
  for (const int world_size : {1, 3}) {
    TinyRun tiny;
    tiny.spec.saving.strategy = SaveStrategy::kSteps;
    tiny.spec.saving.steps = 2;
    tiny.spec.batch.rows_per_device = 1;
    tiny.spec.saving.bytes_per_second = 20'000;  // a few seconds for all of it
    const FileSizeLimit disk;
    const auto fill_disk = [&](const StepMetrics& metrics) {
      if (metrics.step != 3) return;
      disk.set(64);
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      disk.lift();
    };
    const std::vector<RecordingObserver> ranks = train_ranks(tiny.spec, {1, world_size}, 1, {}, fill_disk);
    expect_all_but_the_first(tiny, ranks[0]);
  }
}

TEST(FormerRun, IsMovedAsideAndNothingOfItIsLost) {
  TinyRun tiny;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 3;
  tiny.train();
  const auto weights = read_tensors(tiny.output());
  write_text_file(tiny.output() / "notes.txt", "mine");
  tiny.spec.schedule.learning_rate = 5e-3;
  tiny.spec.saving.strategy = SaveStrategy::kNo;
  const RecordingObserver run = tiny.train();
  const fs::path previous = tiny.output() / "previous-1";
  EXPECT_EQ(run.previous_run, previous);
  EXPECT_THAT(names_in(previous),
              UnorderedElementsAre("checkpoint-3", "checkpoint-6", "config.json", "generation_config.json",
                                   "latest", "memory.json", "metrics.jsonl", "events.jsonl",
                                   "model.safetensors", "trainer_state.json", "training_args.json"));
  EXPECT_EQ(read_tensors(previous), weights);
  EXPECT_NE(read_tensors(tiny.output()), weights);
  EXPECT_EQ(read_text_file(tiny.output() / "notes.txt"), "mine");
  tiny.train();
  EXPECT_TRUE(fs::exists(tiny.output() / "previous-2" / "model.safetensors"));
}

TEST(FormerRun, AModelIsNotTrainedInItsOwnFolder) {
  TinyRun tiny;
  const auto weights = read_tensors(tiny.spec.model.folder);
  tiny.spec.output_dir = tiny.spec.model.folder;
  expect_error(ExitCode::kBadConfig, {"output_dir", "its own base model", "choose another folder"},
               [&] { tiny.train(); });
  EXPECT_EQ(read_tensors(tiny.spec.model.folder), weights);
}

TEST(OutputFolder, BelongsToOneRunAtATime) {
  const TestFolder folder;
  const OutputFolder first(folder / "out");
  expect_error(ExitCode::kTryAgain, {"another run is writing to it"},
               [&] { OutputFolder second(folder / "out"); });
}

TEST(OutputFolder, StaysTheRunsOwnThoughSomebodyRemovesIt) {
  const TestFolder folder;
  fs::create_directories(folder / "real/runs");
  fs::create_symlink(folder / "real/runs", folder / "runs");
  testing::internal::CaptureStderr();
  {
    const OutputFolder first(folder / "runs/out");
    for (const bool is_renamed : {false, true}) {
      if (is_renamed) {
        fs::rename(folder / "real/runs/out", folder / "renamed");
      } else {
        fs::remove_all(folder / "real/runs");
      }
      for (int i = 0; i < 500 && !fs::exists(folder / "runs/out"); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      // It is there before it is locked.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      expect_error(ExitCode::kTryAgain, {"another run is writing to it"},
                   [&] { OutputFolder second(folder / "runs/out"); });
    }
  }
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::HasSubstr("runs/out was removed or renamed while this run writes to it: it is created again"));
  const OutputFolder free(folder / "runs/out");
}

TEST(OutputFolder, RemovesWhatAKilledRunLeftUnfinished) {
  const TestFolder folder;
  create_folder(folder / "out/.unfinished-checkpoint-7");
  OutputFolder output(folder / "out");
  output.set_aside_former_run();
  EXPECT_TRUE(fs::is_empty(folder / "out"));
  EXPECT_TRUE(output.previous_folder().empty());
}

void make_checkpoint(const fs::path& output, int64_t step) {
  const fs::path folder = output / checkpoint_name(step);
  create_folder(folder / kStateFolder);
  write_text_file(folder / kManifestName, "{}");
  write_text_file(output / kLatestName, checkpoint_name(step) + "\n");
}

TEST(OutputFolder, DeletesOwnCheckpointsOnly) {
  const TestFolder folder;
  for (const int64_t step : {2, 4}) make_checkpoint(folder.path(), step);
  create_folder(folder / "checkpoint-1");  // of another program
  folder.write("checkpoint-3", "a file");
  create_folder(folder / "checkpoint-007");
  create_folder(folder / "checkpoint-99999999999999999999");
  OutputFolder output(folder.path());
  output.keep_former_run(4);
  EXPECT_TRUE(output.previous_folder().empty());
  make_checkpoint(folder.path(), 5);
  output.checkpoint_written(5, 1);
  EXPECT_THAT(names_in(folder.path()),
              UnorderedElementsAre("checkpoint-007", "checkpoint-1", "checkpoint-3", "checkpoint-5",
                                   "checkpoint-99999999999999999999", "latest"));
}

TEST(OutputFolder, ACheckpointThatIsReplacedCountsOnce) {
  const TestFolder folder;
  for (const int64_t step : {2, 4}) make_checkpoint(folder.path(), step);
  OutputFolder output(folder.path());
  output.keep_former_run(4);
  output.checkpoint_written(4, 1);
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("checkpoint-4", "latest"));
}

TEST(OutputFolder, LatestNamesACheckpointThatIsThere) {
  const TestFolder folder;
  for (const int64_t step : {2, 4, 6}) make_checkpoint(folder.path(), step);
  {
    OutputFolder output(folder.path());
    output.keep_former_run(4);
    EXPECT_EQ(read_text_file(folder / "latest"), "checkpoint-4\n");
    EXPECT_TRUE(fs::exists(folder / "previous-1/checkpoint-6"));
  }
  {
    OutputFolder output(folder.path());
    output.keep_former_run(1);
    EXPECT_FALSE(fs::exists(folder / "latest"));
  }
  make_checkpoint(folder.path(), 8);
  OutputFolder output(folder.path());
  output.set_aside_former_run();
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("previous-1", "previous-2", "previous-3"));
  EXPECT_EQ(read_text_file(folder / "previous-3/latest"), "checkpoint-8\n");
}

TEST(OutputFolder, LatestMayBeALinkOfSomebody) {
  const TestFolder folder;
  make_checkpoint(folder.path(), 2);
  fs::remove(folder / "latest");
  fs::create_directory_symlink("checkpoint-2", folder / "latest");
  OutputFolder output(folder.path());
  output.keep_former_run(2);
  EXPECT_TRUE(fs::is_symlink(folder / "latest"));
}

TEST(OutputFolder, OfAModelIsNoAdapterAndTheOtherWayRound) {
  const TestFolder folder;
  OutputFolder output(folder.path());
  const auto write = [&](const std::vector<std::string>& names) {
    output.replace_model([&](const fs::path& staging) {
      for (const std::string& name : names) write_text_file(staging / name, "{}");
    });
  };
  const std::vector<std::string> model = {"config.json", "generation_config.json", "model.safetensors"};
  const std::vector<std::string> adapter = {"adapter_config.json", "adapter_model.safetensors",
                                            "chat_template.jinja"};
  folder.write("notes.txt", "mine");
  for (const std::vector<std::string>& names : {adapter, model, adapter}) {
    write(names);
    std::vector<std::string> expected = names;
    expected.push_back("notes.txt");
    std::vector<std::string> found = names_in(folder.path());
    std::erase_if(found, [](const std::string& name) { return name.starts_with("previous-"); });
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
  }
}

TEST(OutputFolder, LeavesNothingBehindWhenWritingFails) {
  const TestFolder folder;
  OutputFolder output(folder / "out");
  EXPECT_THROW(output.replace_model([](const fs::path&) { fail(ExitCode::kIoError, "full"); }), Error);
  EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(OutputFolder, AFileInItsPlaceIsNamed) {
  const TestFolder folder;
  folder.write("out", "a file");
  expect_error(ExitCode::kIoError, {"out"}, [&] { OutputFolder output(folder / "out"); });
}

TEST(OutputFolder, ThatCannotBeIsToldBeforeAnythingIsRead) {
  TinyRun tiny;
  tiny.folder().write("file", "");
  tiny.spec.output_dir = tiny.folder() / "file/deep/inside";
  tiny.spec.model.folder = tiny.folder() / "no model";
  expect_error(ExitCode::kIoError, {"output_dir", "deep/inside", "Not a directory"}, [&] { tiny.train(); });
  if (geteuid() == 0) GTEST_SKIP() << "the rest needs a user who may not write everywhere";
  tiny.spec.output_dir = "/etc/tessera-test";
  expect_error(ExitCode::kIoError, {"output_dir", "/etc", "Permission denied"}, [&] { tiny.train(); });
}

TEST(DiskSpace, ARunWhoseModelWillNotFitIsRefusedAtTheStart) {
  TinyRun tiny;
  const TestFolder disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=4k") != 0) {
    GTEST_SKIP() << "mounting a file system is not permitted here";
  }
  tiny.spec.output_dir = disk / "out";
  expect_error(ExitCode::kBadConfig,
               {(disk / "out").native(), "not enough disk space for the finished model: "},
               [&] { tiny.train(); });
  EXPECT_FALSE(fs::exists(disk / "out"));
  ::umount2(disk.path().c_str(), MNT_DETACH);
}

// Takes all the room of a disk right before the finished model is written.
class DiskFiller : public RecordingObserver {
 public:
  explicit DiskFiller(fs::path file) : file_(std::move(file)) {}
  void on_log(const LogEntry& entry) override {
    if (!value_of(entry, "train_runtime")) return;
    std::ofstream out(file_, std::ios::binary);
    const std::string page(4096, 'x');
    while (out.write(page.data(), std::ssize(page)).flush()) {
    }
  }

 private:
  fs::path file_;
};

TEST(DiskSpace, AModelThatNoLongerFitsLeavesTheCheckpointThatWritesIt) {
  const TestFolder disk;
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "mounting a file system is not permitted here";
  }
  const auto train_until_full = [&](const RunSpec& spec, const std::string& advice) {
    DiskFiller observer(disk / "fill");
    ThreadPool pool(2);
    Trainer trainer(spec, pool, observer);
    expect_error(ExitCode::kIoError, {"No space left on device", advice}, [&] { trainer.run(); });
    fs::remove(disk / "fill");
  };
  TinyRun tiny;
  tiny.spec.batch.max_steps = 2;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.total_limit = 1;
  tiny.train();
  const auto expected = read_tensors(tiny.output());
  tiny.spec.output_dir = disk / "out";
  tiny.spec.saving.steps = 2;
  train_until_full(tiny.spec,
                   "checkpoint-2 has the whole run: the same command with --resume_from_checkpoint");
  tiny.spec.resume = parse_resume("auto");
  train_until_full(tiny.spec, "checkpoint-2 has the whole run");
  EXPECT_TRUE(tiny.train().steps.empty());
  EXPECT_EQ(read_tensors(tiny.output()), expected);

  tiny.spec.output_dir = disk / "unsaved";
  tiny.spec.saving.strategy = SaveStrategy::kNo;
  train_until_full(tiny.spec, "no checkpoint was saved (save_strategy)");
  ::umount2(disk.path().c_str(), MNT_DETACH);
}

TEST(DiskSpace, IsPartOfThePlan) {
  TinyRun tiny;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 1;
  tiny.spec.saving.total_limit = 1;
  const DiskPlan plan = tiny.train().plan.disk;
  EXPECT_EQ(plan.num_checkpoints, 2);
  EXPECT_EQ(plan.checkpoint_bytes, 3 * plan.model_bytes) << "float32 weights and two moments";
  int64_t size_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(tiny.output())) {
    if (entry.path().extension() == ".safetensors") size_bytes += static_cast<int64_t>(entry.file_size());
  }
  const int64_t left = plan.model_bytes + plan.checkpoint_bytes;
  EXPECT_GE(size_bytes, left);
  EXPECT_LT(size_bytes, left + 30'000) << "the headers of three files";
}

}  // namespace
}  // namespace tessera
