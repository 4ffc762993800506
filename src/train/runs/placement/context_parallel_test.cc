// Ranks that share rows (--context_parallel_size).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "expect_error.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct ContextCase {
  RanksCase ranks;
  int64_t size;
  int64_t num_key_value_heads = 4;

  std::string name() const {
    return fmt::format("{}teamsof{}heads{}", ranks.name(), size, num_key_value_heads);
  }
  friend void PrintTo(const ContextCase& of, std::ostream* out) { *out << of.name(); }
};

ModelConfig context_config(int64_t num_key_value_heads) {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = num_key_value_heads;
  return config;
}

class ContextParallel : public testing::TestWithParam<ContextCase> {
 protected:
  ModelConfig config() const { return context_config(GetParam().num_key_value_heads); }
  int num_teams() const { return GetParam().ranks.ranks.world_size() / static_cast<int>(GetParam().size); }

  // 12 rows a step for any number of teams; the rows of `run` are one rank's.
  RunSettings arguments(const TinyRun& run) const {
    RunSettings spec = run.spec;
    spec.batch.accumulation_steps = run.spec.batch.accumulation_steps / num_teams();
    spec.sharding.stage = GetParam().ranks.stage;
    spec.sharding.gather_schedule = from_word(GetParam().ranks.schedule);
    spec.sharding.persistence_threshold = 0;
    spec.sharding.prefetch_bucket_size = 0;
    spec.sharding.context_parallel_size = GetParam().size;
    spec.output_dir = run.folder() / "context";
    return spec;
  }

  // Trains alone and in teams, which must do the same.
  void expect_same_run(const TinyRun& run) {
    const RecordingObserver expected = run.train();
    const RunSpec spec = arguments(run);
    const RecordingObserver found = train_ranks(spec, GetParam().ranks.ranks).front();
    expect_same_numbers(found, expected);
    expect_close_weights(spec.output_dir, run.output());
    ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
    for (size_t i = 0; i < found.evaluations.size(); ++i) {
      // Batches, and so their mean, differ with the number of teams.
      EXPECT_NEAR(found.evaluations[i].loss_per_token, expected.evaluations[i].loss_per_token,
                  2e-6 * expected.evaluations[i].loss_per_token);
      EXPECT_EQ(found.evaluations[i].num_tokens, expected.evaluations[i].num_tokens);
      EXPECT_EQ(found.evaluations[i].num_rows, expected.evaluations[i].num_rows);
    }
  }
};

// On one rank.
struct WholeRun : TinyRun {
  explicit WholeRun(const ModelConfig& config) : TinyRun(config) {
    write_token_rows(folder() / "train.safetensors",
                     random_rows(std::vector<int64_t>(24, 9), config.vocab_size, 3));
    spec.batch.rows_per_device = 1;
    spec.batch.accumulation_steps = 12;
    spec.batch.max_steps = 3;
    spec.data.eval_dataset = spec.data.dataset;
    spec.evaluation.strategy = IntervalStrategy::kSteps;
    spec.evaluation.steps = 2;
  }
};

TEST_P(ContextParallel, TrainsAsOneRankDoes) {
  std::vector<ModelConfig> configs(3, config());
  configs[1].qkv_bias = configs[1].o_bias = configs[1].mlp_bias = configs[1].tie_word_embeddings = true;
  configs[2].sliding_window = {4, 4, 4};
  for (const ModelConfig& config : configs) expect_same_run(WholeRun(config));
}

TEST_P(ContextParallel, RecomputesLayers) {
  WholeRun run(config());
  run.spec.placement.gradient_checkpointing = true;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  for (const char* mode : {"full", "selective"}) {
    run.spec.placement.checkpointing_mode = from_word(mode);
    run.spec.output_dir = run.folder() / mode;
    expect_same_run(run);
  }
}

// Each row has one token to be predicted: some slices have none.
TEST_P(ContextParallel, TrainsSlicesWithoutTargets) {
  for (const bool tied : {false, true}) {
    ModelConfig config = this->config();
    config.tie_word_embeddings = tied;
    WholeRun run(config);
    std::vector<TokenRow> rows = random_rows(std::vector<int64_t>(24, 9), config.vocab_size, 3);
    for (TokenRow& row : rows) {
      for (size_t t = 0; t < row.labels.size(); ++t) row.labels[t] = t == 5 ? row.ids[t] : kIgnoredLabel;
    }
    write_token_rows(run.folder() / "train.safetensors", rows);
    run.spec.placement.merge_micro_batches = AutoChoice::kNever;
    expect_same_run(run);
  }
}

TEST_P(ContextParallel, DrawsNoiseAndDropoutByToken) {
  WholeRun run(config());
  run.spec.objective.neftune_alpha = 5;
  for (const char* merge : {"never", "always"}) {
    run.spec.placement.merge_micro_batches = from_word(merge);
    expect_same_run(run);
  }
  run.spec.lora.finetuning_type = FinetuningType::kLora;
  run.spec.lora.rank = 3;
  run.spec.lora.dropout = 0.2;
  run.spec.output_dir = run.folder() / "lora";
  expect_same_run(run);
}

TEST_P(ContextParallel, NamesTheRowWhoseLossIsNotFinite) {
  WholeRun run(config());
  run.spec.evaluation.strategy = IntervalStrategy::kNo;
  run.spec.schedule.learning_rate = 1e30;
  run.spec.clipping.max_norm = 0;
  const RunSpec spec = arguments(run);
  expect_error(ExitCode::kNumerics, {"step 2: loss", "gradient norm nan"},
               [&] { train_ranks(spec, GetParam().ranks.ranks); });
}

std::vector<ContextCase> context_cases() {
  return {{{{1, 2}, 2, "per_step"}, 2}, {{{1, 4}, 2, "per_step"}, 2},    {{{1, 4}, 0, "per_step"}, 4},
          {{{2, 1}, 2, "per_step"}, 2}, {{{2, 1}, 3, "per_layer"}, 2},   {{{2, 2}, 3, "per_layer"}, 4},
          {{{2, 2}, 1, "per_step"}, 2}, {{{1, 4}, 2, "per_step"}, 4, 2}, {{{2, 2}, 3, "per_layer"}, 4, 1}};
}
INSTANTIATE_TEST_SUITE_P(Cases, ContextParallel, testing::ValuesIn(drawn_cases(context_cases())),
                         [](const auto& test) { return test.param.name(); });

SavingRun saving_run(const Ranks& ranks, int64_t size, const char* dtype) {
  SavingRun run(ranks, context_config(2));
  run.spec.sharding.context_parallel_size = size;
  run.spec.batch.accumulation_steps = 4 * size / ranks.world_size();
  run.spec.precision.dtype = from_word(dtype);
  return run;
}

TEST(ContextParallelRun, ResumesBitForBitAndInOtherTeams) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const SavingRun whole = saving_run({2, 2}, 4, dtype);
    const RecordingObserver seen = whole.run();
    expect_resumes_alike(whole, {2});

    for (const int64_t size : {1, 2}) {
      SavingRun elsewhere = whole;
      elsewhere.interrupt_at(2, fmt::format("elsewhere-{}", size));
      elsewhere.spec.resume = parse_resume("true");
      elsewhere.ranks = {1, 2};
      elsewhere.spec.sharding.context_parallel_size = size;
      if (size > 1) {
        // One pass of all micro-batches, whose number follows from the teams.
        elsewhere.spec.batch.rows_per_device = 1;
        elsewhere.spec.placement.merge_micro_batches = AutoChoice::kAlways;
        elsewhere.spec.placement.optimizer_in_backward = true;
      }
      expect_near_losses(elsewhere.run(), seen, elsewhere.spec.precision.dtype);
    }
  }
}

// A signal that reaches one rank in the middle of a pass ends it on all ranks of the team at once, and the
// run leaves the checkpoint of the step before.
TEST(ContextParallelRun, IsAbandonedByWholeTeams) {
  for (const Ranks& ranks : {Ranks{1, 4}, Ranks{2, 1}}) {
    for (const int64_t asked : {1, 5, 9, 14}) {
      SCOPED_TRACE(fmt::format("{}x{} asked {} times", ranks.num_nodes, ranks.local_world_size, asked));
      WholeRun run(context_config(4));
      run.spec.evaluation.strategy = IntervalStrategy::kNo;
      run.spec.sharding.context_parallel_size = 2;
      run.spec.batch.accumulation_steps = 12 * 2 / ranks.world_size();
      run.spec.placement.merge_micro_batches = AutoChoice::kNever;
      run.spec.grace_period_s = 0.5;  // less than a checkpoint is estimated to take
      run.spec.sharding.stage = 2;
      int64_t num_asked = 0;  // of the last rank
      const auto seen = train_ranks(run.spec, ranks, 1, [&](int rank) {
        return rank + 1 == ranks.world_size() && ++num_asked > asked ? SIGTERM : 0;
      });
      EXPECT_EQ(seen.front().summary.stop_signal, SIGTERM);
      EXPECT_LE(seen.front().steps.size(), 1u);
    }
  }
}

// 10 tokens of each row, with one that is added: all passes are alike.
TEST(ContextParallelRun, MovesWhatThePlanSays) {
  for (const auto& [mode, num_key_value_heads] : {std::pair("", 4), std::pair("full", 4), std::pair("", 1)}) {
    WholeRun run(context_config(num_key_value_heads));
    run.spec.sharding.context_parallel_size = 4;
    run.spec.sharding.stage = 2;
    run.spec.placement.merge_micro_batches = AutoChoice::kNever;
    run.spec.placement.gradient_checkpointing = *mode != 0;
    const RecordingObserver seen = train_ranks(run.spec, {2, 2}).front();
    EXPECT_GT(seen.plan.wire.tokens, 0);
    for (const StepMetrics& step : seen.steps) {
      if (step.step == 1) continue;
      EXPECT_EQ(step.network->sent_bytes, 2 * seen.plan.wire.sent()) << "step " << step.step;
    }
    run.spec.sharding.context_parallel_size = 2;
    EXPECT_EQ(train_ranks(run.spec, {2, 2}).front().plan.wire.tokens, 0);
  }
}

TEST(ContextParallelRun, RefusesTeamsThatCannotBe) {
  const auto refused = [](const Ranks& ranks, int64_t size, const std::string& fragment) {
    TinyRun run;
    run.spec.sharding.context_parallel_size = size;
    expect_error(ExitCode::kBadConfig, {fragment}, [&] { train_ranks(run.spec, ranks); });
  };
  refused({1, 3}, 3, "expected a divisor of the model's key-value heads");
  refused({3, 2}, 4, "expected all ranks of a number of nodes");
}

}  // namespace
}  // namespace tessera
