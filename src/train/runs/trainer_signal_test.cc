// Signals in the middle of steps and evaluations of several ranks.
#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "io/file.h"
#include "platform/stop_signal.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A run of 3 steps of 3 passes each, with a checkpoint at the end.
class SignalTest : public testing::TestWithParam<RanksCase> {
 protected:
  SignalTest() : spec(tiny_.spec) {
    write_token_rows(tiny_.folder() / "train.safetensors",
                     random_rows(std::vector<int64_t>(36, 9), tiny_config().vocab_size, 3));
    spec.sharding.stage = GetParam().stage;
    spec.sharding.gather_schedule = from_word(GetParam().schedule);
    spec.sharding.persistence_threshold = 0;
    spec.sharding.prefetch_bucket_size = 0;
    spec.batch.rows_per_device = 1;
    spec.batch.accumulation_steps = 3;
    spec.placement.merge_micro_batches = AutoChoice::kNever;
    spec.batch.max_steps = 3;
    spec.saving.strategy = SaveStrategy::kSteps;
    spec.saving.steps = 3;
    spec.grace_period_s = 0.5;  // less than a checkpoint is estimated to take
  }

  // SIGTERM reaches one rank in the first step of the process, when it asks for the `number`-th time.
  RecordingObserver stop_in_first_step(int64_t number) {
    return stop(fmt::format("first-{}", number), [=](int, int64_t num_asked) { return num_asked >= number; });
  }
  // SIGTERM reaches it the `number`-th time it asks after the first step.
  RecordingObserver stop_behind_first_step(int64_t number, const std::string& name) {
    if (asked_in_first_step_.empty()) count_in_first_step();
    return stop(name, [=, this](int rank, int64_t num_asked) {
      return num_asked >= asked_in_first_step_[static_cast<size_t>(rank)] + number;
    });
  }

  std::string weights_of(const fs::path& checkpoint) {
    return read_text_file(checkpoint / "model.safetensors");
  }

  TinyRun tiny_;
  RunSettings spec;

 private:
  RecordingObserver stop(const std::string& name,
                         const std::function<bool(int rank, int64_t num_asked)>& when) {
    spec.output_dir = tiny_.folder() / name;
    const Ranks& ranks = GetParam().ranks;
    const auto signalled = static_cast<int>(num_stopped_++ % ranks.world_size());
    int64_t num_asked = 0;  // of that rank
    const RecordingObserver seen = train_ranks(spec, ranks, 1, [&](int rank) {
      return rank == signalled && when(rank, num_asked++) ? SIGTERM : 0;
    })[0];
    EXPECT_EQ(seen.summary.stop_signal, SIGTERM) << name;
    return seen;
  }

  void count_in_first_step() {
    RunSettings one_step = spec;
    one_step.output_dir = tiny_.folder() / "one step";
    one_step.batch.max_steps = 1;
    one_step.evaluation.strategy = IntervalStrategy::kNo;
    asked_in_first_step_.resize(static_cast<size_t>(GetParam().ranks.world_size()));
    train_ranks(one_step, GetParam().ranks, 1, [&](int rank) {
      ++asked_in_first_step_[static_cast<size_t>(rank)];
      return 0;
    });
  }

  int64_t num_stopped_ = 0;
  std::vector<int64_t> asked_in_first_step_;  // by rank
};

// The first step of a process asks the others between passes, later ones, when passes are short, at its end.
TEST_P(SignalTest, StepIsGivenUpInAnyLayer) {
  RunSettings whole = spec;
  whole.output_dir = tiny_.folder() / "whole";
  whole.saving.steps = 1;
  train_ranks(whole, GetParam().ranks);
  const int64_t num_layers = tiny_config().num_hidden_layers;
  const int64_t asked_in_pass = 2 * num_layers + 2 + tiny_config().tie_word_embeddings;
  for (int64_t num_asked = 0; num_asked < 3 * asked_in_pass; num_asked += sanitizer_stride()) {
    EXPECT_TRUE(stop_in_first_step(num_asked).steps.empty()) << num_asked;
    const std::string name = fmt::format("second-{}", num_asked);
    const RecordingObserver seen = stop_behind_first_step(num_asked, name);
    EXPECT_EQ(seen.steps.size(), 1u) << num_asked;
    EXPECT_EQ(seen.checkpoints, std::vector<fs::path>{tiny_.folder() / name / "checkpoint-1"});
    EXPECT_EQ(weights_of(tiny_.folder() / name / "checkpoint-1"),
              weights_of(tiny_.folder() / "whole/checkpoint-1"));
  }
}

TEST_P(SignalTest, StepIsFinishedWhereThereIsTime) {
  spec.grace_period_s = 300;
  EXPECT_EQ(stop_behind_first_step(2, "patient").steps.size(), 2u);
}

TEST_P(SignalTest, EvaluationIsGivenUpInAnyLayer) {
  spec.data.eval_dataset = {tiny_.folder() / "eval.safetensors"};
  spec.evaluation.strategy = IntervalStrategy::kSteps;
  spec.evaluation.steps = 1;
  spec.evaluation.rows_per_device = 1;
  spec.grace_period_s = 300;
  RunSettings whole = spec;
  whole.output_dir = tiny_.folder() / "whole";
  const RecordingObserver expected = train_ranks(whole, GetParam().ranks)[0];
  for (int64_t num_asked = 0; num_asked < 6; num_asked += sanitizer_stride()) {
    const std::string name = fmt::format("evaluation-{}", num_asked);
    const RecordingObserver seen = stop_behind_first_step(num_asked, name);
    EXPECT_EQ(seen.steps.size(), 1u);
    EXPECT_TRUE(seen.evaluations.empty());
    EXPECT_EQ(seen.checkpoints, std::vector<fs::path>{tiny_.folder() / name / "checkpoint-1"});
    RunSettings resumed = spec;
    resumed.resume = parse_resume("true");
    const RecordingObserver rest = train_ranks(resumed, GetParam().ranks)[0];
    ASSERT_EQ(rest.evaluations.size(), expected.evaluations.size()) << "it is made up for";
    for (size_t i = 0; i < rest.evaluations.size(); ++i) {
      EXPECT_EQ(rest.evaluations[i].loss, expected.evaluations[i].loss);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Signal, SignalTest,
                         testing::Values(RanksCase{{1, 2}, 2, "per_step"}, RanksCase{{2, 1}, 3, "per_layer"},
                                         RanksCase{{2, 2}, 3, "per_step"}, RanksCase{{1, 1}, 2, "per_step"}),
                         [](const auto& param) { return param.param.name(); });

// The interrupted code may have its stack pointer in the heap (stop_signal.cc).
TEST(StopSignals, AreHandledOnAStackOfTheirOwn) {
  const StopSignals signals;
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(number, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0);
  }
  stack_t stack = {};
  ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
  EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
}

}  // namespace
}  // namespace tessera
