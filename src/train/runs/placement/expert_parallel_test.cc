// Experts divided among nodes (--expert_parallel).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "expect_error.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

ModelConfig mixture_config(MixtureOfExperts experts) {
  ModelConfig config = tiny_config();
  config.family = experts.fused ? "gpt_oss" : "qwen3_moe";
  config.num_hidden_layers = 3;
  experts.layers.resize(3, true);
  if (experts.fused) {
    config.qkv_bias = config.o_bias = config.attention_sinks = true;
    config.sliding_window = {2, 0, 2};
    config.rope_scaling = {};
    config.rope_scaling.type = RopeType::kYarn;
    config.rope_scaling.factor = 4;
    config.rope_scaling.attention_factor = 1.2;
    config.rope_scaling.original_max_position_embeddings = 16;
    config.rope_scaling.truncate = false;
  } else {
    config.qk_norm = true;
  }
  config.experts = experts;
  return config;
}

// 12 rows a step.
struct MixtureRun : TinyRun {
  explicit MixtureRun(const ModelConfig& config, int num_ranks = 1) : TinyRun(config) {
    write_token_rows(folder() / "train.safetensors",
                     random_rows(std::vector<int64_t>(24, 9), config.vocab_size, 3));
    spec.batch.rows_per_device = 1;
    spec.batch.accumulation_steps = 12 / num_ranks;
    spec.batch.max_steps = 3;
    spec.data.eval_dataset = spec.data.dataset;
    spec.evaluation.strategy = IntervalStrategy::kSteps;
    spec.evaluation.steps = 2;
    spec.sharding.stage = 3;
  }
};

RunSettings divided(const MixtureRun& run, const Ranks& ranks) {
  RunSettings spec = run.spec;
  spec.batch.accumulation_steps = run.spec.batch.accumulation_steps / ranks.world_size();
  spec.sharding.expert_parallel = AutoChoice::kAlways;
  spec.sharding.persistence_threshold = 0;
  spec.sharding.prefetch_bucket_size = 0;
  spec.output_dir = run.folder() / "divided";
  return spec;
}

class ExpertParallel : public testing::TestWithParam<RanksCase> {
 protected:
  // Trains alone and with experts divided, which must do the same.
  void expect_same_run(const MixtureRun& run) {
    const RecordingObserver expected = run.train();
    const RunSpec spec = divided(run, GetParam().ranks);
    const RecordingObserver found = train_ranks(spec, GetParam().ranks).front();
    EXPECT_TRUE(found.plan.zero.divides_experts);
    expect_same_numbers(found, expected);
    expect_close_weights(spec.output_dir, run.output());
    ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
    for (size_t i = 0; i < found.evaluations.size(); ++i) {
      EXPECT_NEAR(found.evaluations[i].loss_per_token, expected.evaluations[i].loss_per_token,
                  2e-6 * expected.evaluations[i].loss_per_token);
      EXPECT_EQ(found.evaluations[i].num_tokens, expected.evaluations[i].num_tokens);
    }
  }
};

TEST_P(ExpertParallel, TrainsAsOneRankDoes) {
  const std::vector<MixtureOfExperts> mixtures = {
      {.num_experts = 7,
       .num_experts_per_tok = 3,
       .moe_intermediate_size = 9,
       .norm_topk_prob = true,
       .layers = {}},
      {.num_experts = 4, .num_experts_per_tok = 1, .moe_intermediate_size = 5, .layers = {}},
      {.num_experts = 5,
       .num_experts_per_tok = 2,
       .moe_intermediate_size = 11,
       .norm_topk_prob = true,
       .layers = {},
       .fused = ClampedSwiglu{.alpha = 1.3f, .limit = 0.4f}}};
  for (const MixtureOfExperts& mixture : mixtures) {
    for (const char* merge : {"never", "always"}) {
      SCOPED_TRACE(fmt::format("{} experts, merge {}", mixture.num_experts, merge));
      MixtureRun run(mixture_config(mixture));
      run.spec.placement.merge_micro_batches = from_word(merge);
      expect_same_run(run);
    }
  }
}

TEST_P(ExpertParallel, RecomputesLayers) {
  for (const char* mode : {"full", "selective"}) {
    MixtureRun run(mixture_config(
        {.num_experts = 6, .num_experts_per_tok = 2, .moe_intermediate_size = 9, .layers = {}}));
    run.spec.placement.gradient_checkpointing = true;
    run.spec.placement.checkpointing_mode = from_word(mode);
    expect_same_run(run);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertParallel,
                         testing::Values(RanksCase{{2, 1}, 3, "per_layer"}, RanksCase{{2, 2}, 3, "per_layer"},
                                         RanksCase{{3, 1}, 3, "per_layer"},
                                         RanksCase{{4, 1}, 3, "per_layer"}),
                         [](const auto& test) { return test.param.name(); });

ModelConfig six_experts() {
  return mixture_config(
      {.num_experts = 6, .num_experts_per_tok = 2, .moe_intermediate_size = 9, .layers = {}});
}

TEST(ExpertParallelRun, ResumesBitForBitAndOnOtherNodes) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SavingRun whole({2, 2}, six_experts());
    whole.spec.sharding.stage = 3;
    whole.spec.sharding.expert_parallel = AutoChoice::kAlways;
    whole.spec.precision.dtype = from_word(dtype);
    const RecordingObserver seen = whole.run();
    EXPECT_TRUE(seen.plan.zero.divides_experts);
    expect_resumes_alike(whole, {2});

    for (const Ranks& ranks : {Ranks{1, 1}, Ranks{2, 1}, Ranks{4, 1}}) {
      SavingRun elsewhere = whole;
      elsewhere.interrupt_at(2, fmt::format("elsewhere-{}", ranks.num_nodes));
      elsewhere.spec.resume = parse_resume("true");
      elsewhere.ranks = ranks;
      elsewhere.spec.batch.accumulation_steps = 4 / ranks.world_size();
      if (ranks.num_nodes == 2) elsewhere.spec.sharding.expert_parallel = AutoChoice::kNever;
      expect_near_losses(elsewhere.run(), seen, elsewhere.spec.precision.dtype);
    }
  }
}

// A signal that reaches one rank in the middle of a pass ends it on all ranks of its rail at once.
TEST(ExpertParallelRun, IsAbandonedByWholeRails) {
  for (const Ranks& ranks : {Ranks{2, 1}, Ranks{2, 2}, Ranks{3, 1}}) {
    for (const int64_t asked : {1, 4, 7, 11, 14}) {
      SCOPED_TRACE(fmt::format("{}x{} asked {} times", ranks.num_nodes, ranks.local_world_size, asked));
      const MixtureRun run(six_experts());
      RunSettings spec = divided(run, ranks);
      spec.evaluation.strategy = IntervalStrategy::kNo;
      spec.placement.merge_micro_batches = AutoChoice::kNever;
      spec.grace_period_s = 0.5;  // less than a checkpoint is estimated to take
      int64_t num_asked = 0;      // of the last rank
      const auto seen = train_ranks(spec, ranks, 1, [&](int rank) {
        return rank + 1 == ranks.world_size() && ++num_asked > asked ? SIGTERM : 0;
      });
      EXPECT_EQ(seen.front().summary.stop_signal, SIGTERM);
      EXPECT_LE(seen.front().steps.size(), 1u);
    }
  }
}

// Few tokens against many experts: rows cost less than weights and gradients; and the other way round.
TEST(ExpertParallelRun, AutoTakesWhatMovesLess) {
  for (const bool is_long : {false, true}) {
    ModelConfig config = six_experts();
    config.experts->num_experts = is_long ? 2 : 40;
    config.max_position_embeddings = 4096;
    MixtureRun run(config);
    if (is_long)
      write_token_rows(run.folder() / "train.safetensors",
                       random_rows(std::vector<int64_t>(24, 2000), config.vocab_size, 3));
    run.spec.batch.max_steps = 1;
    run.spec.evaluation.strategy = IntervalStrategy::kNo;
    run.spec.batch.accumulation_steps = 1;
    const RecordingObserver seen = train_ranks(run.spec, {2, 1}).front();
    EXPECT_EQ(seen.plan.zero.divides_experts, !is_long);
    EXPECT_EQ(seen.plan.wire.tokens > 0, !is_long);
  }
}

TEST(ExpertParallelRun, SaysWhatItCannotBeCombinedWith) {
  const auto refused = [](const std::string& fragment, const std::function<void(RunSettings&)>& change) {
    const MixtureRun run(six_experts(), 2);
    RunSettings spec = run.spec;
    spec.sharding.expert_parallel = AutoChoice::kAlways;
    change(spec);
    expect_error(ExitCode::kBadConfig, {"expert_parallel always cannot be combined with " + fragment}, [&] {
      train_ranks(spec, {2, 1});
    });
  };
  refused("zero_stage 2", [](RunSettings& spec) { spec.sharding.stage = 2; });
  refused("gather_schedule per_step",
          [](RunSettings& spec) { spec.sharding.gather_schedule = GatherChoice::kPerStep; });
  refused("optim muon", [](RunSettings& spec) { spec.optimizer.form = from_word("muon"); });
  refused("adapters", [](RunSettings& spec) {
    spec.lora.finetuning_type = FinetuningType::kLora;
    spec.lora.rank = 2;
  });
}

}  // namespace
}  // namespace tessera
