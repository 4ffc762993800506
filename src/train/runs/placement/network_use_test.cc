// Compares the measured traffic between nodes in a step with the closed form. Ranks are threads.
#include <gtest/gtest.h>

#include "settings/derived.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

// Summed over all nodes.
WireBytes wire_bytes_of_job(const ZeroLayout& layout, const ZeroSettings& settings) {
  WireBytes sum;
  for (int node = 0; node < layout.num_nodes; ++node) {
    const WireBytes wire = wire_bytes_per_step(layout, settings, node);
    sum.sent_gather += wire.sent_gather;
    sum.received_gather += wire.received_gather;
    sum.sent_reduce += wire.sent_reduce;
    sum.received_reduce += wire.received_reduce;
  }
  return sum;
}

class NetworkUseTest : public testing::TestWithParam<RanksCase> {
 protected:
  NetworkUseTest() : run_(config()) {
    // No step of the largest batch, 5 x 4 ranks, is the last of an epoch, which may have fewer passes.
    write_token_rows(run_.folder() / "train.safetensors",
                     random_rows(std::vector<int64_t>(80, 9), config().vocab_size, 3));
    run_.spec.batch.rows_per_device = 1;
    run_.spec.placement.merge_micro_batches = AutoChoice::kNever;
    run_.spec.batch.max_steps = 4;
    run_.spec.sharding.stage = GetParam().stage;
    run_.spec.sharding.gather_schedule = from_word(GetParam().schedule);
    run_.spec.sharding.prefetch_bucket_size = 0;  // two of four layers are in memory
    run_.spec.sharding.persistence_threshold = 0;
  }

  static ModelConfig config() {
    ModelConfig config = tiny_config();
    config.num_hidden_layers = 4;
    return config;
  }

  ZeroLayout layout() const {
    return zero_layout(parameter_layout(config()), GetParam().ranks.num_nodes,
                       GetParam().ranks.local_world_size);
  }

  // Every step after the first.
  void expect_closed_form(const std::string& what) {
    const RecordingObserver found = train_ranks(run_.spec, GetParam().ranks).front();
    const ZeroSettings settings = zero_settings_of(run_.spec, config(), run_.spec.batch.accumulation_steps);
    const WireBytes expected = wire_bytes_of_job(layout(), settings);
    ASSERT_GT(expected.sent(), 0);
    ASSERT_EQ(found.steps.size(), 4u);
    EXPECT_EQ(found.plan.wire.sent(), wire_bytes_per_step(layout(), settings, 0).sent()) << what;
    for (const StepMetrics& step : found.steps) {
      ASSERT_TRUE(step.network.has_value());
      EXPECT_EQ(step.network->sent_bytes, step.network->received_bytes) << what;
      EXPECT_GT(step.network->time_s, 0) << what;
      EXPECT_GE(step.network->hidden, 0) << what;
      EXPECT_LE(step.network->hidden, 1) << what;
      if (step.step == 1) continue;
      EXPECT_EQ(step.network->sent_bytes, expected.sent()) << what << ", step " << step.step;
    }
    EXPECT_EQ(found.summary.network->sent_bytes, expected.sent()) << what;
    // If the node has all weights, the first step has them from disk.
    const bool gathers_in_step = shards_weights(layout(), settings);
    EXPECT_EQ(found.steps[0].network->sent_bytes,
              expected.sent() - (gathers_in_step ? 0 : expected.sent_gather))
        << what;
  }

  TinyRun run_;
};

TEST_P(NetworkUseTest, EveryStepMovesWhatTheClosedFormSays) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const int64_t accumulation : {1, 2, 5}) {
      run_.spec.precision.dtype = from_word(dtype);
      run_.spec.batch.accumulation_steps = accumulation;
      expect_closed_form(fmt::format("{}, accumulation {}", dtype, accumulation));
    }
  }
}

TEST_P(NetworkUseTest, GradientsOfBfloat16WeightsMayTravelInFloat32) {
  run_.spec.precision.dtype = DType::kBF16;
  const WireBytes narrow = wire_bytes_of_job(layout(), zero_settings_of(run_.spec, config(), 2));
  run_.spec.sharding.communication_dtype = DType::kF32;
  const WireBytes wide = wire_bytes_of_job(layout(), zero_settings_of(run_.spec, config(), 2));
  EXPECT_EQ(wide.sent_gather, narrow.sent_gather);
  EXPECT_GT(wide.sent_reduce, narrow.sent_reduce);
  expect_closed_form("communication_data_type fp32");
}

TEST_P(NetworkUseTest, QuantizedWeightsTakeLittleMoreThanHalf) {
  if (GetParam().stage == 0) GTEST_SKIP() << "stage 0 gathers no weights";
  run_.spec.precision.dtype = DType::kBF16;
  run_.spec.batch.accumulation_steps = 2;
  const WireBytes exact = wire_bytes_of_job(layout(), zero_settings_of(run_.spec, config(), 2));
  run_.spec.sharding.quantized_weights = true;
  const WireBytes quantized = wire_bytes_of_job(layout(), zero_settings_of(run_.spec, config(), 2));
  EXPECT_EQ(quantized.sent_reduce, exact.sent_reduce);
  EXPECT_GT(quantized.sent_gather, exact.sent_gather / 2);
  EXPECT_LT(quantized.sent_gather, exact.sent_gather * 6 / 10);
  expect_closed_form("zero_quantized_weights");
}

TEST_P(NetworkUseTest, QuantizedGradientsTakeLittleMoreThanHalfOrAQuarter) {
  run_.spec.precision.dtype = DType::kBF16;
  run_.spec.batch.accumulation_steps = 2;
  run_.spec.saving.strategy = SaveStrategy::kSteps;
  run_.spec.saving.steps = 2;
  const auto reduced = [&](const char* code) {
    run_.spec.sharding.quantized_gradients = from_word(code);
    ZeroSettings settings = zero_settings_of(run_.spec, config(), 2);
    settings.stage = std::max(settings.stage, 1);  // stage 0 gathers the sums besides
    return static_cast<double>(wire_bytes_of_job(layout(), settings).sent_reduce);
  };
  const double exact = reduced("none");
  for (const auto& [code, share] : {std::pair("int8", 0.5), std::pair("int4", 0.25)}) {
    EXPECT_GT(reduced(code), share * exact);
    EXPECT_LT(reduced(code), 1.25 * share * exact);  // short blocks
  }
  run_.spec.sharding.quantized_gradients =
      GetParam().stage % 2 == 0 ? GradientCode::kInt8 : GradientCode::kInt4;
  expect_closed_form(std::string(word_of(kGradientCodeWords, run_.spec.sharding.quantized_gradients)));
}

TEST_P(NetworkUseTest, WithoutOverlapTheSameIsMoved) {
  run_.spec.sharding.overlap_comm = false;
  run_.spec.batch.accumulation_steps = 2;
  expect_closed_form("without overlap");
}

// Neither belongs to a step. Under per_layer an evaluation leaves different layers in memory than a step
// does, so the next step gathers different ones.
TEST_P(NetworkUseTest, EvaluationAndSavingAreNotCounted) {
  if (GetParam().schedule == "per_step") {
    run_.spec.data.eval_dataset = {run_.folder() / "eval.safetensors"};
    run_.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run_.spec.evaluation.steps = 1;
  }
  run_.spec.saving.strategy = SaveStrategy::kSteps;
  run_.spec.saving.steps = 2;
  expect_closed_form("with evaluations and checkpoints");
}

TEST(NetworkUse, OneNodeHasNone) {
  TinyRun run;
  const RecordingObserver found = train_ranks(run.spec, {1, 2}).front();
  for (const StepMetrics& step : found.steps) {
    EXPECT_FALSE(step.network.has_value());
  }
  const auto lines = read_json_lines(run.output() / "metrics.jsonl");
  EXPECT_FALSE(lines.back().contains("network_sent_bytes"));
}

// 2 bytes per parameter gathered, 2 reduced, times (K - 1) / K, for any accumulation; the arrays have gaps of
// less than a cache line after each tensor.
TEST(NetworkUse, PerStepMovesFourBytesPerParameter) {
  TinyRun run;
  run.spec.precision.dtype = DType::kBF16;
  run.spec.sharding.stage = 2;
  run.spec.batch.rows_per_device = 1;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  for (const int nodes : {2, 3}) {
    for (const int64_t accumulation : {1, 2}) {
      run.spec.batch.accumulation_steps = accumulation;
      const RecordingObserver found = train_ranks(run.spec, {nodes, 1}).front();
      const double expected =
          4.0 * static_cast<double>(parameter_layout(tiny_config()).num_elements()) * (nodes - 1);
      EXPECT_EQ(static_cast<double>(found.steps.back().network->sent_bytes), expected)
          << nodes << " nodes, accumulation " << accumulation;
      const auto lines = read_json_lines(run.output() / "metrics.jsonl");
      EXPECT_EQ(static_cast<double>(lines.back().at("network_sent_bytes")), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, NetworkUseTest, testing::ValuesIn(drawn_cases(cases_of_several_nodes())),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace tessera
