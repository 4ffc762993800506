// Runs that get requests for logs, evaluations, checkpoints and an early end while they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "base/error.h"
#include "report/sinks/control_channel.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// Makes the requests that a table has for each step; in later calls of a step it makes none.
class ScriptedControl : public RunControl {
 public:
  ScriptedControl(const RecordingObserver& run, std::map<int64_t, RunRequests> wanted)
      : run_(run), wanted_(std::move(wanted)) {}
  RunRequests requests() override {
    ++num_calls;
    return std::exchange(wanted_[run_.steps.back().step], {});
  }

  int64_t num_calls = 0;

 private:
  const RecordingObserver& run_;
  std::map<int64_t, RunRequests> wanted_;
};

class ControlTest : public testing::TestWithParam<RanksCase> {
 protected:
  ControlTest() {
    tiny_.spec.sharding.stage = GetParam().stage;
    tiny_.spec.batch.max_steps = 6;
    tiny_.spec.saving.strategy = SaveStrategy::kNo;
    tiny_.spec.reporting.logging_strategy = IntervalStrategy::kNo;
  }

  RecordingObserver train(const std::map<int64_t, RunRequests>& wanted, int64_t* num_calls = nullptr) {
    std::vector<RecordingObserver> observers(static_cast<size_t>(GetParam().ranks.world_size()));
    ScriptedControl control(observers[0], wanted);
    run_ranks(GetParam().ranks, [&](Communicator& comm) {
      const int rank = comm.world().rank;
      ThreadPool pool(1);
      Trainer trainer(tiny_.spec, pool, observers[static_cast<size_t>(rank)], comm);
      trainer.run({}, rank == 0 ? &control : nullptr);
    });
    if (num_calls) *num_calls = control.num_calls;
    return observers[0];
  }

  TinyRun tiny_;
};

TEST_P(ControlTest, EndsARunWithItsModel) {
  const RecordingObserver run = train({{3, {.stop = true}}});
  EXPECT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.summary.stop_signal, 0);
  EXPECT_EQ(run.summary.folder, tiny_.output());
  const nlohmann::json state = read_json(tiny_.output() / "trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 3);
  EXPECT_FALSE(read_tensors(tiny_.output()).empty());
}

TEST_P(ControlTest, SavesWhatResumesToTheSameWeights) {
  tiny_.spec.output_dir = tiny_.folder() / "whole";
  train({});
  tiny_.spec.output_dir = tiny_.folder() / "saved";
  const RecordingObserver saved = train({{2, {.save = true}}});
  EXPECT_THAT(saved.checkpoints, ElementsAre(tiny_.output() / "checkpoint-2"));
  fs::remove(tiny_.output() / "model.safetensors");
  tiny_.spec.resume = parse_resume("true");
  EXPECT_EQ(train({}).resumed_step, 2);
  EXPECT_EQ(read_tensors(tiny_.folder() / "saved"), read_tensors(tiny_.folder() / "whole"));
}

TEST_P(ControlTest, LogsAndEvaluatesAndIsAskedOnceMoreThen) {
  tiny_.spec.data.eval_dataset = {tiny_.folder() / "train.safetensors"};
  tiny_.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny_.spec.evaluation.steps = 100;
  int64_t num_calls = 0;
  const RecordingObserver run = train({{1, {.log = true}}, {4, {.evaluate = true}}}, &num_calls);
  ASSERT_EQ(run.evaluations.size(), 2u);  // the second at the end of the run
  ASSERT_GE(run.logs.size(), 2u);
  EXPECT_EQ(run.logs[0].step, 1);
  EXPECT_EQ(run.logs[1].step, 4);
  EXPECT_EQ(num_calls, 6 + 3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlTest,
                         testing::Values(RanksCase{{1, 1}, 0, "per_step"}, RanksCase{{1, 2}, 3, "per_step"},
                                         RanksCase{{2, 1}, 2, "per_step"}),
                         [](const auto& of) { return of.param.name(); });

TEST(ControlChannel, NamesASocketThatNobodyListensAt) {
  const RunSpec spec;
  try {
    ControlChannel channel(spec, "/nowhere/control");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
    EXPECT_STREQ(error.what(),
                 "TESSERA_CONTROL: cannot connect to /nowhere/control: No such file or directory");
  }
}

}  // namespace
}  // namespace tessera
