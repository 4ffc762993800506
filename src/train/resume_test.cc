// Going on from checkpoints: the same bits on the same ranks, the same losses on others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <set>

#include "expect_error.h"
#include "formats/file.h"
#include "train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const std::set<std::string> kTimes = {"tokens_per_second", "step_time_s", "tflops", "network_time_s",
                                      "network_hidden", "checkpoint_step", "checkpoint_bytes",
                                      "checkpoint_write_s", "checkpoint_stall_s", "train_runtime",
                                      "train_samples_per_second", "train_steps_per_second", "eval_runtime",
                                      "eval_samples_per_second", "eval_steps_per_second",
                                      // The first step of a process has its weights from the disk.
                                      "network_sent_bytes", "network_received_bytes"};

nlohmann::json without_times(nlohmann::json object) {
  for (const std::string& name : kTimes) object.erase(name);
  return object;
}

std::vector<nlohmann::json> metrics_of(const fs::path& output) {
  std::vector<nlohmann::json> lines = read_json_lines(output / "metrics.jsonl");
  for (nlohmann::json& line : lines) line = without_times(line);
  return lines;
}

nlohmann::json history_of(const fs::path& folder) {
  nlohmann::json history = read_json(folder / "trainer_state.json").at("log_history");
  for (nlohmann::json& entry : history) entry = without_times(entry);
  return history;
}

// All weights and the optimizer's state: every safetensors file by its name.
std::map<std::string, std::string> tensor_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[fs::relative(entry.path(), folder)] = read_text_file(entry.path());
  }
  return files;
}

// A run of 6 steps over two epochs of 14 rows, in shuffled order, with a checkpoint after every step. Copies
// share model and data.
class SavingRun {
 public:
  explicit SavingRun(const Ranks& run_ranks = {}) : args(tiny_->args), ranks(run_ranks) {
    args.shuffle = true;
    args.per_device_train_batch_size = 1;
    args.gradient_accumulation_steps = 4 / ranks.world_size();
    args.lr_scheduler_type = "cosine";
    args.save_strategy = "steps";
    args.save_steps = 1;
    args.logging_steps = 2;
    args.zero_stage = 2;
    args.adam_beta2 = 0.9;
  }

  const TestFolder& folder() const { return tiny_->folder(); }
  fs::path output() const { return args.output_dir; }

  // On rank 0.
  RecordingObserver run(const std::function<int(int rank)>& stop_signal = {},
                        const std::function<void(const StepMetrics&)>& after_step = {}) const {
    if (ranks.world_size() == 1) {
      tiny_->args = args;
      return tiny_->train(
          2, [&] { return stop_signal ? stop_signal(0) : 0; }, after_step);
    }
    return train_ranks(args, ranks, 1, stop_signal, after_step)[0];
  }
  // SIGTERM reaches rank 0 behind so many steps of this process.
  RecordingObserver run_until_signal(int64_t num_steps) const {
    std::atomic<int64_t> done = 0;
    return run([&](int rank) { return rank == 0 && done >= num_steps ? SIGTERM : 0; },
               [&](const StepMetrics&) { ++done; });
  }

  // As after a crash behind step `step`: another output folder with what there was then and, in
  // metrics.jsonl, a step more and half a line.
  void interrupt_at(int64_t step, const std::string& name) {
    const fs::path from = output();
    args.output_dir = folder() / name;
    create_folder(output());
    for (int64_t i = 1; i <= step; ++i) {
      const std::string checkpoint = fmt::format("checkpoint-{}", i);
      if (fs::exists(from / checkpoint)) {
        fs::copy(from / checkpoint, output() / checkpoint, fs::copy_options::recursive);
      }
    }
    const std::vector<nlohmann::json> lines = read_json_lines(from / "metrics.jsonl");
    std::ofstream out(output() / "metrics.jsonl");
    for (int64_t i = 0; i <= step; ++i) out << lines[static_cast<size_t>(i)].dump() << "\n";
    out << "{\"step\": 3, \"lo";
  }

 private:
  std::shared_ptr<TinyRun> tiny_ = std::make_shared<TinyRun>();

 public:
  TrainingArguments args;
  Ranks ranks;
};

void expect_same_run(const fs::path& found, const fs::path& expected) {
  EXPECT_EQ(read_tensors(found), read_tensors(expected));
  EXPECT_EQ(metrics_of(found), metrics_of(expected));
  EXPECT_EQ(history_of(found), history_of(expected));
  EXPECT_EQ(tensor_files(found / "checkpoint-6"), tensor_files(expected / "checkpoint-6"));
}

struct SameRanksCase {
  RanksCase ranks;
  std::string dtype;
};

class SameRanks : public testing::TestWithParam<SameRanksCase> {};

TEST_P(SameRanks, GoOnBitForBitFromEveryStep) {
  SavingRun run(GetParam().ranks.ranks);
  run.args.dtype = GetParam().dtype;
  run.args.zero_stage = GetParam().ranks.stage;
  run.args.gather_schedule = GetParam().ranks.schedule;
  run.run();
  const fs::path whole = run.output();
  for (int64_t step = 1; step < 6; ++step) {
    SCOPED_TRACE(fmt::format("interrupted behind step {}", step));
    SavingRun resumed = run;
    resumed.args.output_dir = whole;
    resumed.interrupt_at(step, fmt::format("resumed{}", step));
    resumed.args.resume_from_checkpoint = step % 2 == 0 ? "true" : "auto";
    const RecordingObserver seen = resumed.run();
    EXPECT_EQ(std::ssize(seen.steps), 6 - step) << "steps taken";
    EXPECT_EQ(seen.resumed_step, step);
    EXPECT_EQ(seen.differences, "");
    expect_same_run(resumed.output(), whole);
  }
}

std::vector<SameRanksCase> same_ranks_cases() {
  std::vector<SameRanksCase> cases;
  const auto add = [&cases](const Ranks& ranks, int64_t stage, const char* schedule, const char* dtype) {
    cases.push_back({{ranks, stage, schedule}, dtype});
  };
  add({1, 1}, 0, "auto", "float32");
  add({1, 1}, 0, "auto", "bfloat16");
  add({1, 2}, 2, "auto", "float32");
  add({1, 2}, 0, "auto", "bfloat16");
  add({1, 4}, 2, "auto", "bfloat16");
  add({2, 1}, 0, "auto", "float32");
  add({2, 2}, 1, "auto", "float32");
  add({2, 2}, 3, "per_step", "bfloat16");
  add({2, 2}, 3, "per_layer", "bfloat16");
  add({4, 1}, 3, "per_layer", "float32");
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Resume, SameRanks, testing::ValuesIn(same_ranks_cases()),
                         [](const auto& test) { return test.param.ranks.name() + test.param.dtype; });

struct OtherRanksCase {
  RanksCase then;
  RanksCase now;
};

class OtherRanks : public testing::TestWithParam<OtherRanksCase> {};

TEST_P(OtherRanks, HaveTheSameLosses) {
  SavingRun run(GetParam().then.ranks);
  run.args.zero_stage = GetParam().then.stage;
  run.args.gather_schedule = GetParam().then.schedule;
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(2, "resumed");
  resumed.ranks = GetParam().now.ranks;
  resumed.args.zero_stage = GetParam().now.stage;
  resumed.args.gather_schedule = GetParam().now.schedule;
  resumed.args.resume_from_checkpoint = "true";
  const RecordingObserver seen = resumed.run();
  ASSERT_EQ(seen.steps.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const StepMetrics &found = seen.steps[i], &expected = whole.steps[i + 2];
    EXPECT_EQ(found.step, expected.step);
    EXPECT_EQ(found.epoch, expected.epoch);
    EXPECT_EQ(found.num_tokens, expected.num_tokens);
    EXPECT_EQ(found.learning_rate, expected.learning_rate);
    EXPECT_NEAR(found.loss, expected.loss, 1e-5 * expected.loss) << "step " << found.step;
    EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm);
  }
  EXPECT_EQ(seen.summary.num_tokens, whole.summary.num_tokens);
}

std::vector<OtherRanksCase> other_ranks_cases() {
  std::vector<OtherRanksCase> cases;
  const auto add = [&cases](const RanksCase& then, const RanksCase& now) { cases.push_back({then, now}); };
  add({{1, 4}, 2, "auto"}, {{1, 1}, 0, "auto"});
  add({{1, 4}, 2, "auto"}, {{1, 2}, 2, "auto"});
  add({{1, 4}, 2, "auto"}, {{1, 3}, 2, "auto"});
  add({{2, 2}, 3, "per_layer"}, {{3, 1}, 3, "per_layer"});
  add({{2, 1}, 3, "per_layer"}, {{2, 1}, 1, "auto"});
  add({{2, 1}, 3, "per_layer"}, {{2, 1}, 3, "per_step"});
  add({{2, 2}, 0, "auto"}, {{2, 1}, 3, "per_layer"});
  add({{1, 1}, 0, "auto"}, {{2, 2}, 3, "per_layer"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Resume, OtherRanks, testing::ValuesIn(other_ranks_cases()), [](const auto& test) {
  return test.param.then.name() + "To" + test.param.now.name();
});

TEST(Resume, RowsOfAStepStayThroughSeveralChangesOfTheRanks) {
  SavingRun run({1, 4});
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(1, "resumed");
  resumed.args.resume_from_checkpoint = "true";
  resumed.args.save_steps = 2;
  std::vector<StepMetrics> steps;
  for (const int num_ranks : {3, 3, 2, 4}) {
    resumed.ranks = {1, num_ranks};
    const RecordingObserver seen = resumed.run_until_signal(1);
    steps.insert(steps.end(), seen.steps.begin(), seen.steps.end());
  }
  ASSERT_GE(steps.size(), 4u);
  for (const StepMetrics& step : steps) {
    const StepMetrics& expected = whole.steps[static_cast<size_t>(step.step - 1)];
    EXPECT_EQ(step.num_tokens, expected.num_tokens);
    EXPECT_NEAR(step.loss, expected.loss, 1e-5 * expected.loss) << "step " << step.step;
  }
}

TEST(Resume, MicroBatchesMaySplitOtherwise) {
  SavingRun run;
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.args.per_device_train_batch_size = 2;
  resumed.args.gradient_accumulation_steps = 2;
  resumed.args.resume_from_checkpoint = "true";
  const RecordingObserver seen = resumed.run();
  ASSERT_EQ(seen.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen.steps[i].epoch, whole.steps[i + 3].epoch);
    EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 1e-5 * whole.steps[i + 3].loss);
  }
}

TEST(Resume, AfterASignalIsAsIfThereHadBeenNone) {
  for (const int world_size : {1, 3}) {
    SavingRun run({1, world_size});
    run.args.gradient_accumulation_steps = 1;
    run.args.save_steps = 6;
    run.run();
    SavingRun stopped = run;
    stopped.args.output_dir = run.folder() / "stopped";
    const RecordingObserver first = stopped.run_until_signal(1);
    ASSERT_LT(std::ssize(first.steps), 6);
    stopped.args.resume_from_checkpoint = "auto";
    stopped.run();
    expect_same_run(stopped.output(), run.output());
  }
}

// A signal in the middle of step 3, which has four passes.
RecordingObserver stop_in_step_3(const SavingRun& run) {
  std::atomic<bool> is_in_step = false;
  std::atomic<int64_t> num_asked = 0;
  const int last_rank = run.ranks.world_size() - 1;
  return run.run([&](int rank) { return rank == last_rank && is_in_step && ++num_asked > 3 ? SIGTERM : 0; },
                 [&](const StepMetrics& metrics) { is_in_step = metrics.step >= 2; });
}

TEST(Signal, TakesTheTimeForTheStepOrGivesItUp) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.args.gradient_accumulation_steps = 2;
    run.args.merge_micro_batches = "never";
    run.args.save_steps = 6;
    SavingRun patient = run;
    patient.args.output_dir = run.folder() / "patient";
    EXPECT_EQ(stop_in_step_3(patient).checkpoints, std::vector<fs::path>{patient.output() / "checkpoint-3"});
    SavingRun hasty = run;
    hasty.args.output_dir = run.folder() / "hasty";
    hasty.args.save_on_sigterm = false;
    EXPECT_TRUE(stop_in_step_3(hasty).checkpoints.empty());
  }
  SavingRun run;
  run.args.merge_micro_batches = "never";
  run.args.save_steps = 6;
  run.run();
  SavingRun late = run;
  late.args.output_dir = run.folder() / "late";
  late.args.grace_period_s = 0.5;  // less than what a checkpoint is thought to take
  const RecordingObserver stopped = stop_in_step_3(late);
  EXPECT_EQ(stopped.steps.size(), 2u);
  EXPECT_EQ(stopped.summary.stop_signal, SIGTERM);
  EXPECT_EQ(stopped.checkpoints, std::vector<fs::path>{late.output() / "checkpoint-2"});
  late.args.grace_period_s = 30;
  late.args.resume_from_checkpoint = "true";
  late.run();
  expect_same_run(late.output(), run.output());
}

TEST(Resume, ScheduleThatWatchesEvaluationsGoesOn) {
  SavingRun run;
  run.args.lr_scheduler_type = "reduce_lr_on_plateau";
  run.args.lr_scheduler_kwargs = R"({"patience": 0, "factor": 0.5, "threshold": 0.5})";
  run.args.eval_strategy = "steps";
  run.args.eval_steps = 1;
  run.args.eval_dataset = {run.folder() / "eval.safetensors"};
  const RecordingObserver whole = run.run();
  ASSERT_LT(whole.steps[5].learning_rate, whole.steps[2].learning_rate);
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.args.resume_from_checkpoint = "true";
  resumed.args.learning_rate = 1;  // only where it begins
  EXPECT_EQ(resumed.run().differences, "");
  expect_same_run(resumed.output(), run.output());
}

// The checkpoint is then one without the evaluation that belongs before it.
TEST(Resume, EvaluationThatASignalCutShortIsMadeUpFor) {
  SavingRun run;
  run.args.lr_scheduler_type = "reduce_lr_on_plateau";
  run.args.lr_scheduler_kwargs = R"({"patience": 0, "factor": 0.5, "threshold": 0.5})";
  run.args.eval_strategy = "steps";
  run.args.eval_steps = 1;
  run.args.per_device_eval_batch_size = 1;
  run.args.eval_dataset = {run.folder() / "eval.safetensors"};
  run.run();
  SavingRun stopped = run;
  stopped.args.output_dir = run.folder() / "stopped";
  const RecordingObserver first = stopped.run_until_signal(3);
  ASSERT_EQ(first.steps.size(), 3u);
  ASSERT_EQ(first.evaluations.size(), 2u);
  stopped.args.resume_from_checkpoint = "auto";
  stopped.run();
  expect_same_run(stopped.output(), run.output());
}

TEST(Resume, PathMayBeOfAnotherFolder) {
  SavingRun run;
  run.run();
  SavingRun other = run;
  other.args.output_dir = run.folder() / "other";
  other.args.resume_from_checkpoint = run.output() / "checkpoint-4";
  const RecordingObserver seen = other.run();
  EXPECT_EQ(seen.steps.size(), 2u);
  EXPECT_EQ(read_tensors(other.output()), read_tensors(run.output()));
  EXPECT_EQ(metrics_of(other.output()).size(), 2u);
  EXPECT_TRUE(fs::exists(run.output() / "checkpoint-6"));
}

// Changes a byte in the middle of the largest file of optimizer state.
void damage(const fs::path& checkpoint) {
  fs::path largest;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint / "tessera")) {
    if (entry.path().extension() != ".safetensors") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  std::string bytes = read_text_file(largest);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
  std::ofstream(largest, std::ios::binary) << bytes;
}

// What an agent starts again goes on from what its own starts have written, not from the path again.
TEST(Resume, RestartGoesOnBehindTheCheckpointThatWasAskedFor) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    SavingRun launched = run;
    launched.args.output_dir = run.folder() / "launched";
    launched.args.resume_from_checkpoint = run.output() / "checkpoint-2";
    launched.args.launch_id = "this";
    EXPECT_EQ(launched.run().resumed_step, 2);
    // As after a crash behind step 4.
    for (const char* name : {"checkpoint-5", "checkpoint-6"}) fs::remove_all(launched.output() / name);
    SavingRun again = launched;
    again.args.is_restart = true;
    EXPECT_EQ(again.run().resumed_step, 4);
    // Damaged ones give way to those before, and they to the one that was asked for.
    damage(launched.output() / "checkpoint-6");
    damage(launched.output() / "checkpoint-5");
    EXPECT_EQ(again.run().resumed_step, 4);
    for (const char* name : {"checkpoint-3", "checkpoint-4", "checkpoint-5", "checkpoint-6"}) {
      damage(launched.output() / name);
    }
    EXPECT_EQ(again.run().resumed_step, 2);
    EXPECT_EQ(read_tensors(launched.output()), read_tensors(run.output()));
  }
}

TEST(Resume, RestartTakesNothingOfAnotherLaunch) {
  SavingRun run;
  run.run();
  SavingRun former = run;
  former.args.launch_id = "former";
  former.args.output_dir = run.folder() / "out";
  former.run();
  // The first start of this launch has ended before it came to set those of the former one aside.
  SavingRun again = former;
  again.args.resume_from_checkpoint = run.output() / "checkpoint-3";
  again.args.launch_id = "this";
  again.args.is_restart = true;
  EXPECT_EQ(again.run().resumed_step, 3);
  EXPECT_TRUE(fs::exists(former.output() / "previous-1/checkpoint-6"));
}

TEST(Resume, LaterCheckpointsOfTheFolderAreMovedAside) {
  SavingRun run;
  run.run();
  const auto expected = tensor_files(run.output() / "checkpoint-6");
  SavingRun again = run;
  again.args.resume_from_checkpoint = run.output() / "checkpoint-4";
  EXPECT_EQ(again.run().steps.size(), 2u);
  EXPECT_EQ(tensor_files(run.output() / "previous-1/checkpoint-6"), expected);
  EXPECT_EQ(tensor_files(run.output() / "checkpoint-6"), expected);
  EXPECT_EQ(metrics_of(run.output()).size(), 6u);
}

TEST(Resume, WithoutACheckpointIsAFreshStartOrAnError) {
  SavingRun run;
  run.args.resume_from_checkpoint = "true";
  expect_error(ExitCode::kNoInput, {"resume_from_checkpoint true", run.output().string(), "auto"},
               [&] { run.run(); });
  run.args.resume_from_checkpoint = "auto";
  EXPECT_EQ(run.run().steps.size(), 6u);
  run.args.resume_from_checkpoint = run.folder() / "nowhere";
  expect_error(ExitCode::kNoInput, {"nowhere"}, [&] { run.run(); });
}

TEST(Resume, FinishedRunIsLeftAsItIs) {
  SavingRun run;
  run.run();
  const std::string state = read_text_file(run.output() / "trainer_state.json");
  const fs::file_time_type written = fs::last_write_time(run.output() / "model.safetensors");
  run.args.resume_from_checkpoint = "auto";
  const RecordingObserver seen = run.run();
  EXPECT_TRUE(seen.steps.empty());
  EXPECT_EQ(read_text_file(run.output() / "trainer_state.json"), state);
  EXPECT_EQ(fs::last_write_time(run.output() / "model.safetensors"), written);
}

// The model in the folder is that of a former end, not of the run that went on from an earlier step.
TEST(Resume, FormerEndIsNotThatOfTheRunThatWentOn) {
  SavingRun run;
  run.args.max_steps = 5;
  run.run();
  SavingRun again = run;
  again.args.resume_from_checkpoint = run.output() / "checkpoint-2";
  again.args.learning_rate = 5e-3;
  again.args.max_steps = 6;
  ASSERT_EQ(again.run_until_signal(3).summary.num_steps, 5);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/trainer_state.json"));
  again.args.resume_from_checkpoint = "auto";
  again.args.max_steps = 5;
  EXPECT_TRUE(again.run().steps.empty());
  EXPECT_EQ(read_tensors(again.output()), read_tensors(again.output() / "checkpoint-5"));
}

TEST(Resume, ModelThatWasNotWrittenYetIsWritten) {
  SavingRun run;
  run.run();
  const auto weights = read_tensors(run.output());
  for (const char* name : {"trainer_state.json", "model.safetensors"}) fs::remove(run.output() / name);
  run.args.resume_from_checkpoint = "auto";
  EXPECT_TRUE(run.run().steps.empty());
  EXPECT_EQ(read_tensors(run.output()), weights);
}

TEST(Resume, WhatCannotChangeIsRefusedTogether) {
  SavingRun run;
  run.run();
  run.args.resume_from_checkpoint = "true";
  run.args.data_seed = 7;
  run.args.max_length = 5;
  run.args.gradient_accumulation_steps = 2;
  expect_error(ExitCode::kBadConfig,
               {"checkpoint-6", "seed 42 -> 7", "max_length", "-> 5", "tokens of dataset 126 -> 70",
                "contents of dataset", "rows of a step 4 -> 2"},
               [&] { run.run(); });
  SavingRun other = run;
  ModelConfig config = tiny_config();
  config.num_hidden_layers += 1;
  write_test_model(run.folder() / "deeper", config);
  other.args.data_seed.reset();
  other.args.max_length.reset();
  other.args.gradient_accumulation_steps = 4;
  other.args.model = run.folder() / "deeper";
  other.args.dataset = run.args.dataset;
  other.args.resume_from_checkpoint = run.output() / "checkpoint-6";
  expect_error(ExitCode::kBadConfig,
               {fmt::format("model num_hidden_layers {} -> {}", config.num_hidden_layers - 1,
                            config.num_hidden_layers)},
               [&] { other.run(); });
}

TEST(Resume, WhatMayChangeWithEffectIsNoted) {
  SavingRun run;
  run.run();
  run.args.resume_from_checkpoint = "true";
  run.args.max_steps = 8;
  run.args.learning_rate = 5e-3;
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.differences, "max_steps 6 -> 8, learning_rate 0.01 -> 0.005");
  EXPECT_EQ(seen.steps.size(), 2u);
  EXPECT_EQ(read_json(run.output() / "trainer_state.json").at("global_step"), 8);
}

TEST(Resume, DamagedCheckpointGivesWayToTheOneBefore) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    SavingRun resumed = run;
    resumed.interrupt_at(4, "resumed");
    damage(resumed.output() / "checkpoint-4");
    resumed.args.resume_from_checkpoint = "auto";
    const RecordingObserver seen = resumed.run();
    EXPECT_EQ(seen.resumed_step, 3);
    EXPECT_EQ(seen.steps.size(), 3u);
    EXPECT_TRUE(fs::exists(resumed.output() / "previous-1/checkpoint-4"));
    expect_same_run(resumed.output(), run.output());
  }
}

TEST(Resume, DamagedLogOfACheckpointGivesWayToTheOneBefore) {
  SavingRun run;
  run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(4, "resumed");
  const fs::path log = resumed.output() / "checkpoint-4/trainer_state.json";
  std::string text = read_text_file(log);
  text[text.find("\"loss\": ") + 8] ^= 1;  // another digit
  std::ofstream(log, std::ios::binary) << text;
  resumed.args.resume_from_checkpoint = "auto";
  EXPECT_EQ(resumed.run().resumed_step, 3);
  expect_same_run(resumed.output(), run.output());
}

TEST(Resume, AutoDoesNotStartAfreshBesideCheckpointsThatCannotBeUsed) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.run();
    run.interrupt_at(2, "resumed");
    for (const char* name : {"checkpoint-1", "checkpoint-2"}) {
      fs::resize_file(run.output() / name / "model.safetensors", 100);
    }
    run.args.resume_from_checkpoint = "auto";
    expect_error(ExitCode::kBadData,
                 {"resume_from_checkpoint auto", run.output().string(), "none that can be used"},
                 [&] { run.run(); });
    EXPECT_FALSE(fs::exists(run.output() / "previous-1"));
    // An agent's restart of a run that was to begin afresh has nothing to lose there.
    run.args.agent_resumes = true;
    run.args.is_restart = true;
    run.args.launch_id = "this";
    EXPECT_EQ(run.run().steps.size(), 6u);
    EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-2"));
  }
}

TEST(Resume, AutoStartsAfreshBesideCheckpointsOfAnotherProgram) {
  SavingRun run;
  run.args.resume_from_checkpoint = "auto";
  create_folder(run.output() / "checkpoint-9");
  write_text_file(run.output() / "checkpoint-9/optimizer.pt", "PK");
  EXPECT_EQ(run.run().steps.size(), 6u);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-9/optimizer.pt"));
}

TEST(Resume, RestartOfAFreshRunTakesNothingOfAFormerOne) {
  SavingRun run;
  run.args.launch_id = "former";
  run.run();
  // The first start of this launch has ended before it came to set the former run aside.
  SavingRun again = run;
  again.args.launch_id = "this";
  again.args.resume_from_checkpoint = "auto";
  again.args.agent_resumes = true;
  again.args.is_restart = true;
  EXPECT_EQ(again.run().steps.size(), 6u);
  EXPECT_TRUE(fs::exists(run.output() / "previous-1/checkpoint-6"));
  fs::remove_all(run.output() / "checkpoint-6");
  EXPECT_EQ(again.run().resumed_step, 5);
}

TEST(Resume, FoldersThatAreNoCheckpointAreToldApart) {
  SavingRun run;
  run.run();
  const fs::path output = run.output();
  const auto refuse = [&](const fs::path& folder, const std::vector<std::string>& parts) {
    run.args.resume_from_checkpoint = folder;
    expect_error(ExitCode::kNoInput, parts, [&] { run.run(); });
  };
  refuse(output / "checkpoint-60", {"no such checkpoint", (output / "checkpoint-6").string()});
  refuse(output, {"holds checkpoints", (output / "checkpoint-6").string()});
  fs::remove_all(output / "checkpoint-6/tessera");
  refuse(output / "checkpoint-6",
         {"not written by this program", "--model " + (output / "checkpoint-6").string()});
  fs::remove(output / "checkpoint-5/tessera/manifest.json");
  refuse(output / "checkpoint-5", {"manifest.json: not found", "incomplete"});
  refuse(run.folder().path() / "nowhere/checkpoint-1", {"no such checkpoint"});
}

TEST(Resume, DamagedCheckpointAskedForByNameIsAnError) {
  SavingRun run;
  run.run();
  damage(run.output() / "checkpoint-4");
  run.args.resume_from_checkpoint = run.output() / "checkpoint-4";
  expect_error(ExitCode::kBadData, {"checkpoint-4"}, [&] { run.run(); });
}

TEST(Resume, CheckpointsOfBeforeCountForTheLimit) {
  SavingRun run;
  run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.args.resume_from_checkpoint = "true";
  resumed.args.save_total_limit = 2;
  resumed.run();
  for (int64_t step = 1; step <= 6; ++step) {
    EXPECT_EQ(fs::exists(resumed.output() / fmt::format("checkpoint-{}", step)), step >= 5) << step;
  }
}

TEST(AsyncSave, WritesTheSameFiles) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.args.dtype = "bfloat16";
    run.run();
    SavingRun waiting = run;
    waiting.args.output_dir = run.folder() / "waiting";
    waiting.args.async_save = false;
    waiting.run();
    for (int64_t step = 1; step <= 6; ++step) {
      const std::string name = fmt::format("checkpoint-{}", step);
      EXPECT_EQ(tensor_files(run.output() / name), tensor_files(waiting.output() / name)) << name;
    }
  }
}

TEST(AsyncSave, MetricsTellWhatACheckpointCost) {
  SavingRun run({1, 2});
  run.args.save_steps = 2;
  run.args.max_steps = 8;
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.checkpoints.size(), 4u);
  int64_t num_told = 0;
  for (const nlohmann::json& line : read_json_lines(run.output() / "metrics.jsonl")) {
    if (!line.contains("checkpoint_step")) continue;
    ++num_told;
    EXPECT_LT(line.at("checkpoint_step"), line.at("step"));
    EXPECT_GT(line.at("checkpoint_bytes"), 12 * 1000);
    EXPECT_GT(line.at("checkpoint_write_s"), 0);
    EXPECT_GT(line.at("checkpoint_stall_s"), 0);
  }
  EXPECT_GE(num_told, 2) << "the last two may be complete behind the last step";
}

}  // namespace
}  // namespace tessera
