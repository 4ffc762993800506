// Compares loss and every parameter's gradient with finite differences of a double-precision reference.
#include <gtest/gtest.h>

#include <cmath>

#include "base/sanitizers.h"
#include "support/model_test_support.h"
#include "support/reference_model.h"

namespace tessera {
namespace {

constexpr uint64_t kGradientSeed = 20240607;
constexpr float kWeightScale = 0.35f;

// Rounding of a float32 run: a value passes through some 10 operations per layer forward and as many
// backward, in 2 layers; each adds the error of a dot product of up to 26 terms, sqrt(26) = 5 half-ulps for
// random signs.
constexpr double kRelativeBound = 2 * 10 * 2 * 5 * 0x1.0p-24;
// Central differences with step 1e-5 in double: 1e-10 of the third derivative plus 1e-16 / 1e-5 of the loss.
constexpr double kStep = 1e-5;
constexpr double kDifferenceBound = 1e-7;

// The reference is slow under sanitizers, which do not judge its numbers: every eleventh element there.
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
constexpr int64_t kElementStride = 11;
#else
constexpr int64_t kElementStride = 1;
#endif

double reference_loss(const ReferenceModel<double>& reference, const std::vector<TokenRow>& rows,
                      double label_smoothing) {
  double sum = 0;
  int64_t num_targets = 0;
  for (const TokenRow& row : rows) {
    sum += reference.loss_sum(row.ids, row.labels, label_smoothing, &num_targets);
  }
  return sum;
}

class ModelGradient : public testing::TestWithParam<NamedConfig> {};

TEST_P(ModelGradient, OfEveryParameterEqualsFiniteDifferences) {
  const ModelConfig& config = GetParam().config;
  constexpr float kGradScale = 0.125f;
  constexpr double kSmoothing = 0.1;
  const auto rows = random_rows({7, 1, 6}, config.vocab_size, kGradientSeed);
  const PackedBatch batch = pack(rows);
  const ParameterLayout layout = parameter_layout(config);
  const auto weights = random_weights(layout, kWeightScale, kGradientSeed);

  TestModel test(config, DType::kF32, weights);
  test.model().reserve(limits_of(batch));
  const LossSums sums = test.model().forward_backward(batch, kGradScale, static_cast<float>(kSmoothing));

  ReferenceModel<double> reference(config);
  reference.weights().assign(weights.begin(), weights.end());
  const double loss = reference_loss(reference, rows, kSmoothing);
  EXPECT_EQ(sums.num_targets, batch.num_targets);
  EXPECT_NEAR(sums.loss_sum, loss, kRelativeBound * loss);

  for (const Parameter& parameter : layout.parameters()) {
    std::vector<double> expected;
    double largest = 0;
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; i += kElementStride) {
      double& weight = reference.weights()[static_cast<size_t>(i)];
      const double original = weight;
      weight = original + kStep;
      const double above = reference_loss(reference, rows, kSmoothing);
      weight = original - kStep;
      const double below = reference_loss(reference, rows, kSmoothing);
      weight = original;
      expected.push_back(kGradScale * (above - below) / (2 * kStep));
      largest = std::max(largest, std::abs(expected.back()));
    }
    const double bound = kRelativeBound * largest + kDifferenceBound;
    EXPECT_GT(largest, 100 * bound) << parameter.name << ": a gradient this small proves nothing";
    for (size_t i = 0; i < expected.size(); ++i) {
      const int64_t element = static_cast<int64_t>(i) * kElementStride;
      const double found = test.gradients()[static_cast<size_t>(parameter.offset + element)];
      ASSERT_NEAR(found, expected[i], bound)
          << parameter.name << " element " << element << " seed " << kGradientSeed;
    }
  }
}

// Forms of decoders with attention_dropout, and one that also drops what its blocks add to the stream.
std::vector<NamedConfig> dropout_configs() {
  std::vector<NamedConfig> configs;
  for (NamedConfig& each : all_option_configs()) {
    if (each.name != "soft_caps" && each.name != "norms_before_and_after" && each.name != "parallel_blocks")
      continue;
    configs.push_back(each);
  }
  configs.push_back({"windows", tiny_config()});
  configs.back().config.sliding_window = {0, 5};
  configs.push_back({"outputs", tiny_config()});
  ModelConfig& outputs = configs.back().config;
  outputs.o_bias = outputs.qkv_bias = outputs.mlp_bias = true;
  outputs.dropout.attention_output = outputs.dropout.mlp_output = 0.2;
  for (NamedConfig& each : configs) each.config.dropout.attention = 0.25;
  return configs;
}

class DecoderDropout : public testing::TestWithParam<NamedConfig> {};

TEST_P(DecoderDropout, GradientsAgreeWithDifferencesWhateverIsKept) {
  if (test_device() != DeviceKind::kCpu) GTEST_SKIP() << "is refused on a card";
  const ModelConfig config = GetParam().config;
  const PackedBatch batch = pack(random_rows({7, 1, 20}, config.vocab_size, kGradientSeed));
  const std::vector<float> weights = random_weights(parameter_layout(config), kWeightScale, kGradientSeed);
  const std::vector<uint64_t> numbers = numbers_of_tokens(batch);
  std::vector<std::vector<float>> gradients;
  for (const int64_t num_kept : {-1, 0, 2, 5}) {
    TestModel test(config, DType::kF32, weights);
    ActivationLimits limits = limits_of(batch, num_kept >= 0);
    limits.num_kept_outputs = std::max<int64_t>(0, num_kept);
    test.model().reserve(limits);
    test.model().draw_dropout({.seed = 4, .tokens = numbers});
    double squares = 0;
    const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
    gradients.push_back(test.gradients());
    EXPECT_TRUE(gradients.back() == gradients.front()) << num_kept << " outputs kept";
    if (num_kept >= 0) continue;
    EXPECT_NE(test.model().forward_loss(batch).loss_sum, sums.loss_sum) << "evaluation drops nothing";
    expect_gradients_are_differences(test, weights, std::sqrt(squares), [&] {
      return test.model().forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Options, DecoderDropout, testing::ValuesIn(dropout_configs()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Options, ModelGradient, testing::ValuesIn(all_option_configs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera
