// global_batch_size makes one command line train the same on any number of ranks, which are threads here.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/train/train_test_support.h"

namespace tessera {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

// Every number of ranks up to four on one node, and two nodes.
const std::vector<Ranks> kRanks = {{1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}};

// `spec` and the flags in `settings`, resolved for a number of ranks.
RunSettings resolved(RunSettings spec, const Settings& settings, int64_t world_size) {
  FlagTable table;
  declare_training_flags(&table, &spec);
  for (const auto& [name, value] : settings) table.set(*table.find(name), {value}, "command line");
  spec = read_run_spec(table, spec, world_size);
  return spec;
}

struct Result {
  RecordingObserver rank0;
  nlohmann::json state;  // trainer_state.json
  std::map<std::string, std::vector<float>> weights;
};

Result train_on(const TinyRun& run, const Settings& settings, const Ranks& ranks) {
  Result result;
  RunSettings spec = resolved(run.spec, settings, ranks.world_size());
  spec.output_dir = run.folder() / fmt::format("{}x{}", ranks.num_nodes, ranks.local_world_size);
  result.rank0 = train_ranks(spec, ranks).front();
  result.state = read_json(spec.output_dir / std::filesystem::path("trainer_state.json"));
  result.weights = read_tensors(spec.output_dir);
  return result;
}

// Equal except for times and values computed from rounded numbers.
void expect_same_json(const nlohmann::json& found, const nlohmann::json& expected, const std::string& name) {
  ASSERT_EQ(found.type(), expected.type()) << name;
  if (found.is_structured()) {
    ASSERT_EQ(found.size(), expected.size()) << name;
    for (const auto& [key, value] : expected.items()) {
      if (key.ends_with("_runtime") || key.ends_with("_per_second")) continue;
      const auto index =
          found.is_array() ? nlohmann::json::json_pointer("/" + key) : nlohmann::json::json_pointer() / key;
      ASSERT_TRUE(found.contains(index)) << name << " " << key;
      expect_same_json(found.at(index), value, name + "." + key);
    }
  } else if (found.is_number_float()) {
    EXPECT_NEAR(found.get<double>(), expected.get<double>(), 1e-5 * std::abs(expected.get<double>())) << name;
  } else {
    EXPECT_EQ(found, expected) << name;
  }
}

void expect_same_result(const Result& found, const Result& expected) {
  ASSERT_EQ(found.rank0.steps.size(), expected.rank0.steps.size());
  for (size_t i = 0; i < found.rank0.steps.size(); ++i) {
    const StepMetrics& step = found.rank0.steps[i];
    const StepMetrics& same = expected.rank0.steps[i];
    EXPECT_NEAR(step.loss, same.loss, 1e-6 * same.loss) << "step " << i + 1;
    EXPECT_NEAR(step.grad_norm, same.grad_norm, 1e-5 * same.grad_norm) << "step " << i + 1;
    EXPECT_EQ(step.learning_rate, same.learning_rate) << "step " << i + 1;
    EXPECT_EQ(step.epoch, same.epoch) << "step " << i + 1;
    EXPECT_EQ(step.num_tokens, same.num_tokens) << "step " << i + 1;
    EXPECT_EQ(step.num_target_tokens, same.num_target_tokens) << "step " << i + 1;
  }
  ASSERT_EQ(found.rank0.evaluations.size(), expected.rank0.evaluations.size());
  for (size_t i = 0; i < found.rank0.evaluations.size(); ++i) {
    const EvalResult& evaluation = found.rank0.evaluations[i];
    EXPECT_NEAR(evaluation.loss, expected.rank0.evaluations[i].loss, 1e-6 * evaluation.loss);
    EXPECT_EQ(evaluation.num_targets, expected.rank0.evaluations[i].num_targets);
  }
  EXPECT_EQ(found.rank0.plan.steps_per_epoch, expected.rank0.plan.steps_per_epoch);
  EXPECT_EQ(found.rank0.plan.num_warmup_steps, expected.rank0.plan.num_warmup_steps);
  expect_same_json(found.state, expected.state, "trainer_state");
  for (const auto& [name, values] : expected.weights) {
    EXPECT_LT(relative_error(found.weights.at(name), values), 2e-5) << name;
  }
}

// Runs on one rank and on several; returns the run on one.
Result expect_same_on_any_ranks(const TinyRun& run, const Settings& settings) {
  Result alone = train_on(run, settings, {1, 1});
  for (const Ranks& ranks : kRanks) {
    SCOPED_TRACE(fmt::format("{} nodes of {} ranks", ranks.num_nodes, ranks.local_world_size));
    expect_same_result(train_on(run, settings, ranks), alone);
  }
  return alone;
}

// 14 rows, three epochs of steps of 4, 4, 4 and 2 rows: in the last step, two ranks of four have none.
Settings short_last_steps() {
  return {{"global_batch_size", "4"}, {"num_train_epochs", "3"},       {"shuffle", "true"},
          {"warmup_ratio", "0.2"},    {"lr_scheduler_type", "cosine"}, {"eval_strategy", "epoch"},
          {"logging_steps", "0.25"},  {"learning_rate", "1e-3"}};
}

struct EvaluatingRun : TinyRun {
  EvaluatingRun() {
    spec.batch.accumulation_steps = 1;
    spec.batch.max_steps = -1;
    spec.data.eval_dataset = {folder() / "eval.safetensors"};
  }
};

TEST(GlobalBatch, EpochsEndingInAShortStepAreTheSameOnAnyNumberOfRanks) {
  const EvaluatingRun run;
  const Result alone = expect_same_on_any_ranks(run, short_last_steps());
  ASSERT_EQ(alone.rank0.steps.size(), 12u);
  EXPECT_EQ(alone.rank0.steps[3].num_tokens, 2 * 9) << "no row is taken twice in an epoch";
  EXPECT_EQ(alone.rank0.steps[3].epoch, 1);
  EXPECT_EQ(alone.rank0.evaluations.size(), 3u);
  EXPECT_EQ(alone.rank0.plan.num_warmup_steps, 3);
  EXPECT_EQ(alone.state["num_input_tokens_seen"], 3 * 14 * 9);
}

TEST(GlobalBatch, DropLastLeavesTheShortStepOutOnAnyNumberOfRanks) {
  const EvaluatingRun run;
  Settings settings = short_last_steps();
  settings.emplace_back("dataloader_drop_last", "true");
  settings.emplace_back("per_device_eval_batch_size", "2");  // the last of five rows is dropped there, too
  const Result alone = expect_same_on_any_ranks(run, settings);
  ASSERT_EQ(alone.rank0.steps.size(), 9u);
  for (const StepMetrics& step : alone.rank0.steps) EXPECT_EQ(step.num_tokens, 4 * 9);
}

// 5 rows are not a multiple of any number of ranks or of the micro-batch.
TEST(GlobalBatch, MaxStepsCountTheSameWithShardedWeights) {
  const EvaluatingRun run;
  const Result alone = expect_same_on_any_ranks(run, {{"global_batch_size", "5"},
                                                      {"max_steps", "7"},
                                                      {"zero_stage", "3"},
                                                      {"merge_micro_batches", "never"}});
  ASSERT_EQ(alone.rank0.steps.size(), 7u);
  EXPECT_EQ(alone.rank0.steps[2].num_tokens, 4 * 9);
  EXPECT_EQ(alone.state["num_train_epochs"], 3);
  EXPECT_EQ(alone.state["train_batch_size"], 2);
}

TEST(GlobalBatch, IsOneRanksTrainingWithABatchOfThatSize) {
  const EvaluatingRun run;
  const Result batch = train_on(run, {{"global_batch_size", "4"}, {"num_train_epochs", "2"}}, {1, 1});
  const Result same =
      train_on(run, {{"per_device_train_batch_size", "4"}, {"num_train_epochs", "2"}}, {1, 1});
  ASSERT_EQ(batch.rank0.steps.size(), same.rank0.steps.size());
  for (size_t i = 0; i < batch.rank0.steps.size(); ++i) {
    EXPECT_NEAR(batch.rank0.steps[i].loss, same.rank0.steps[i].loss, 1e-6 * same.rank0.steps[i].loss);
    EXPECT_EQ(batch.rank0.steps[i].epoch, same.rank0.steps[i].epoch);
  }
}

// One step of AdamW whose epsilon is far above the gradients changes a weight by nearly rate / epsilon times
// its gradient: a difference in the gradient becomes a difference of the same relative size in the weights.
TEST(GlobalBatch, RowsDealtByLengthHaveTheSameGradientOnAnyNumberOfRanks) {
  ModelConfig config = tiny_config();
  config.max_position_embeddings = std::max<int64_t>(config.max_position_embeddings, 128);
  TinyRun run(config);
  run.spec.data.dataset.clear();
  int64_t num_tokens = 0;
  // In this order the first micro-batches would have nearly all the tokens.
  for (const int64_t length : {120, 97, 61, 40, 23, 11, 7, 5, 3, 2}) {
    const std::filesystem::path file = run.folder() / fmt::format("{}.safetensors", length);
    write_token_rows(file, random_rows({length}, config.vocab_size, static_cast<uint64_t>(length)));
    run.spec.data.dataset.push_back(file);
    num_tokens += length;
  }
  run.spec.batch.rows_per_device = 2;
  run.spec.batch.accumulation_steps = 1;
  run.spec.batch.max_steps = 1;
  run.spec.optimizer.epsilon = 1e3;
  run.spec.schedule.learning_rate = 1e3;
  run.spec.clipping.max_norm = 0;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  const Settings settings = {{"global_batch_size", "10"}};
  const auto start = read_tensors(run.spec.model.folder);
  const auto change = [&start](const Result& result) {
    auto changes = result.weights;
    for (auto& [name, values] : changes) {
      for (size_t i = 0; i < values.size(); ++i) values[i] -= start.at(name)[i];
    }
    return changes;
  };

  const Result alone = train_on(run, settings, {1, 1});
  EXPECT_EQ(alone.rank0.plan.max_pass_tokens, 120 + 97);
  const auto expected = change(alone);
  for (const Ranks& ranks : kRanks) {
    SCOPED_TRACE(fmt::format("{} nodes of {} ranks", ranks.num_nodes, ranks.local_world_size));
    const Result found = train_on(run, settings, ranks);
    EXPECT_LE(found.rank0.plan.max_pass_tokens, std::max<int64_t>(120, num_tokens / 2)) << "dealt by length";
    EXPECT_EQ(found.rank0.steps[0].num_tokens, num_tokens);
    EXPECT_NEAR(found.rank0.steps[0].grad_norm, alone.rank0.steps[0].grad_norm,
                1e-6 * alone.rank0.steps[0].grad_norm);
    for (const auto& [name, values] : change(found)) {
      EXPECT_LT(relative_error(values, expected.at(name)), 1e-5) << name;
    }
  }
}

}  // namespace
}  // namespace tessera
