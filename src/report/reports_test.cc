// Log lines, trainer_state.json, metrics.jsonl, what is due when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "expect_error.h"
#include "plan/step_actions.h"
#include "report/files/metrics_file.h"
#include "report/trainer_state.h"
#include "support/train/from_word.h"

namespace tessera {
namespace {

TEST(LogLine, ReadsAsHuggingFacePrintsIt) {
  LogEntry entry;
  entry.values = {{"loss", 2.10484999}, {"grad_norm", 2.13}, {"learning_rate", 4.99e-05}};
  entry.epoch = 0.0123;
  entry.step = 7;
  EXPECT_EQ(log_line_text(entry),
            "{'loss': 2.1048, 'grad_norm': 2.13, 'learning_rate': 4.99e-05, 'epoch': 0.01}");
}

TEST(LogLine, KeepsFloatsFloatsAndCountsWhole) {
  LogEntry entry;
  entry.values = {{"eval_loss", 3.0}, {"num_input_tokens_seen", int64_t{12}}};
  entry.epoch = 1;
  EXPECT_EQ(log_line_text(entry), "{'eval_loss': 3.0, 'num_input_tokens_seen': 12, 'epoch': 1.0}");
}

// The gradient norm of a step that was skipped.
TEST(LogLine, HasPythonsWordsForNumbersThatAreNotFinite) {
  LogEntry entry;
  const double infinity = std::numeric_limits<double>::infinity();
  entry.values = {{"grad_norm", std::nan("")}, {"eval_perplexity", infinity}, {"x", -infinity}};
  EXPECT_EQ(log_line_text(entry), "{'grad_norm': nan, 'eval_perplexity': inf, 'x': -inf, 'epoch': 0.0}");
}

TEST(LogHistoryText, IsRefusedWhereItIsNoListOfReports) {
  for (const auto& [text, found] : std::map<std::string, std::string>{
           {"{}", "expected a list"},
           {"[]", "expected an object, found an empty list"},
           {R"({"log_history": [1]})", "log_history[0]': expected an object, found 1"},
           {R"({"log_history": [{"step": 1}]})", "log_history[0].epoch"},
           {R"({"log_history": [{"step": 1, "epoch": 1, "loss": "low"}]})", "log_history[0].loss"}}) {
    expect_error(ExitCode::kBadData, {"state.json", found},
                 [&, json = text] { parse_log_history(json, "state.json"); });
  }
}

TEST(LogHistoryText, GrowsWithTheHistory) {
  LogHistoryText text;
  std::vector<LogEntry> history;
  EXPECT_TRUE(parse_log_history(text.of(history), "text").empty());
  for (int64_t step = 1; step <= 5; ++step) {
    history.push_back({.values = {{"count", 3 * step}, {"loss", 1.0 / static_cast<double>(step)}},
                       .epoch = 0.1 * static_cast<double>(step),
                       .step = step});
    if (step % 2 == 0) continue;  // two entries at once
    const std::vector<LogEntry> parsed = parse_log_history(text.of(history), "text");
    ASSERT_EQ(parsed.size(), history.size());
    for (size_t i = 0; i < parsed.size(); ++i) {
      EXPECT_EQ(parsed[i].step, history[i].step);
      EXPECT_EQ(parsed[i].epoch, history[i].epoch);
      EXPECT_EQ(parsed[i].values, history[i].values);
    }
  }
  EXPECT_EQ(text.of(history), std::string(text.of(history))) << "nothing is new";
}

TEST(TrainerStateJson, IsTheDocumentHuggingFaceWrites) {
  TrainerState state;
  state.global_step = 2;
  state.epoch = 0.5;
  state.max_steps = 4;
  state.num_train_epochs = 1;
  state.train_batch_size = 8;
  state.logging_steps = 1;
  LogEntry entry;
  entry.values = {{"loss", 2.25}, {"grad_norm", 1.5}, {"learning_rate", 1e-05}};
  entry.epoch = 0.5;
  entry.step = 2;
  state.log_history = {entry};
  EXPECT_EQ(trainer_state_json(state, true, false), R"({
  "best_global_step": null,
  "best_metric": null,
  "best_model_checkpoint": null,
  "epoch": 0.5,
  "eval_steps": 500,
  "global_step": 2,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [
    {
      "epoch": 0.5,
      "grad_norm": 1.5,
      "learning_rate": 1e-05,
      "loss": 2.25,
      "step": 2
    }
  ],
  "logging_steps": 1,
  "max_steps": 4,
  "num_input_tokens_seen": 0,
  "num_train_epochs": 1,
  "save_steps": 500,
  "stateful_callbacks": {
    "TrainerControl": {
      "args": {
        "should_epoch_stop": false,
        "should_evaluate": false,
        "should_log": false,
        "should_save": true,
        "should_training_stop": false
      },
      "attributes": {}
    }
  },
  "total_flos": 0.0,
  "train_batch_size": 8,
  "trial_name": null,
  "trial_params": null
}
)");
}

TEST(MetricsLine, HasEveryFieldAndEveryDigit) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.epoch = 0.1;
  metrics.loss = 1.0 / 3;
  metrics.grad_norm = 2;
  metrics.learning_rate = 1e-5;
  metrics.num_tokens = 100;
  metrics.num_target_tokens = 90;
  metrics.tokens_per_second = 50;
  metrics.step_time_s = 2;
  metrics.tflops = 1.5;
  metrics.times = {.rows_s = 0.125,
                   .products_s = 1,
                   .attention_s = 0.25,
                   .elementwise_s = 0.125,
                   .optimizer_s = 0.25,
                   .other_s = 0.25};
  EXPECT_EQ(metrics_line(metrics),
            R"({"step":3,"epoch":0.1,"loss":0.3333333333333333,"grad_norm":2.0,"learning_rate":1e-05,)"
            R"("num_tokens":100,"num_target_tokens":90,"tokens_per_second":50.0,"step_time_s":2.0,)"
            R"("tflops":1.5,"time_rows_s":0.125,"time_products_s":1.0,"time_attention_s":0.25,)"
            R"("time_elementwise_s":0.125,"time_wait_s":0.0,"time_optimizer_s":0.25,"time_other_s":0.25})");
  metrics.eta_s = 7.5;
  metrics.mfu = 0.25;
  metrics.peak = {.tflops = 6, .num_measurements = 3};
  EXPECT_THAT(metrics_line(metrics),
              testing::EndsWith(R"("time_other_s":0.25,"eta_s":7.5,"mfu":0.25,"peak_tflops":6.0})"));
  metrics.network = {.sent_bytes = 7, .received_bytes = 8, .time_s = 0.5, .hidden = 0.75};
  EXPECT_THAT(metrics_line(metrics),
              testing::EndsWith(R"("peak_tflops":6.0,"network_sent_bytes":7,"network_received_bytes":8,)"
                                R"("network_time_s":0.5,"network_hidden":0.75})"));
  metrics.disk = {.read_bytes = 5, .written_bytes = 4, .state_wait_s = 0.5, .inputs_wait_s = 0.25};
  metrics.times.disk_s = metrics.disk->wait_s();
  EXPECT_THAT(metrics_line(metrics),
              testing::AllOf(
                  testing::HasSubstr(R"("time_disk_s":0.75,)"),
                  testing::EndsWith(R"("disk_read_bytes":5,"disk_written_bytes":4,"disk_state_wait_s":0.5,)"
                                    R"("disk_weights_wait_s":0.0,"disk_inputs_wait_s":0.25})")));
  metrics.disk.reset();
  const std::array<RankStep, 2> ranks = {RankStep{.num_tokens = 50, .compute_s = 1, .wait_s = 0.5},
                                         RankStep{.num_tokens = 50, .compute_s = 1.5, .wait_s = 0}};
  metrics.ranks = ranks;
  EXPECT_THAT(metrics_line(metrics),
              testing::EndsWith(R"("network_hidden":0.75,"rank_compute_s":[1.0,1.5]})"));
}

// The steps after which an action is due.
template <typename Member>
std::vector<int64_t> due_steps(const RunSpec& spec, int64_t steps_per_epoch, int64_t max_steps,
                               Member member) {
  const ActionSchedule actions(spec, steps_per_epoch, max_steps);
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= max_steps; ++step) {
    if (actions.after(step).*member) steps.push_back(step);
  }
  return steps;
}

using Steps = std::vector<int64_t>;

TEST(ActionSchedule, LogsByStepsEpochsAndTheFirstStep) {
  RunSettings spec;
  spec.reporting.logging_steps = 3;
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::log), (Steps{3, 6, 9}));
  spec.reporting.logging_first_step = true;
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::log), (Steps{1, 3, 6, 9}));
  spec.reporting.logging_steps = 0.25;  // ceil(2.5)
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::log), (Steps{1, 3, 6, 9}));
  spec.reporting.logging_strategy = IntervalStrategy::kEpoch;
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::log), (Steps{1, 4, 8, 10}));
  spec.reporting.logging_strategy = IntervalStrategy::kNo;
  spec.reporting.logging_first_step = false;
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::log), Steps{});
}

TEST(ActionSchedule, SavesAtTheLastStepToo) {
  RunSettings spec;
  spec.saving.steps = 4;
  EXPECT_EQ(due_steps(spec, 4, 10, &StepActions::save), (Steps{4, 8, 10}));
  spec.saving.strategy = SaveStrategy::kEpoch;
  EXPECT_EQ(due_steps(spec, 3, 10, &StepActions::save), (Steps{3, 6, 9, 10}));
  spec.saving.strategy = SaveStrategy::kNo;
  EXPECT_EQ(due_steps(spec, 3, 10, &StepActions::save), Steps{});
}

TEST(ActionSchedule, EvaluatesAfterTheDelay) {
  RunSettings spec;
  spec.evaluation.strategy = IntervalStrategy::kSteps;
  spec.evaluation.steps = 2;
  EXPECT_EQ(due_steps(spec, 4, 9, &StepActions::evaluate), (Steps{2, 4, 6, 8, 9}));  // the last step, too
  spec.evaluation.delay = 5;
  EXPECT_EQ(due_steps(spec, 4, 9, &StepActions::evaluate), (Steps{6, 8, 9}));
  spec.evaluation.strategy = IntervalStrategy::kEpoch;
  spec.evaluation.delay = 2;
  EXPECT_EQ(due_steps(spec, 4, 9, &StepActions::evaluate), (Steps{8, 9}));
}

TEST(ActionSchedule, CountsTheCheckpointsToCome) {
  RunSettings spec;
  for (const char* strategy : {"no", "steps", "epoch"}) {
    for (const double save_steps : {1.0, 3.0, 0.25, 100.0}) {
      spec.saving.strategy = from_word(strategy);
      spec.saving.steps = save_steps;
      const ActionSchedule actions(spec, /*steps_per_epoch=*/4, /*max_steps=*/10);
      int64_t num_saves = 0;
      for (int64_t step = 10; step >= 0; --step) {
        EXPECT_EQ(actions.num_saves(step), num_saves) << strategy << " " << save_steps << " after " << step;
        if (step > 0 && actions.after(step).save) ++num_saves;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
