#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/initialize.h"

namespace tessera {
namespace {

Parameter matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {name, {rows, columns}, 0, rows * columns, ParameterKind::kMatrix, true, 0};
}

Parameter vector_of(ParameterKind kind, int64_t size) { return {"v", {size}, 0, size, kind, false, 0}; }

std::vector<float> initialised(const Parameter& parameter, double range, uint64_t seed, int64_t begin,
                               int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), -7);
  ModelConfig config;
  config.initializer_range = range;
  initialize_parameter(parameter, config, seed, begin, TensorView(values.data(), DType::kF32, {count}));
  return values;
}

TEST(InitializeParameter, MatricesAreNormalWithTheConfiguredDeviation) {
  constexpr int64_t kRows = 200;
  constexpr int64_t kColumns = 500;
  constexpr double kRange = 0.05;
  const auto values = initialised(matrix("lm_head.weight", kRows, kColumns), kRange, 7, 0, kRows * kColumns);
  double sum = 0;
  double sum_of_squares = 0;
  for (const float value : values) {
    sum += value;
    sum_of_squares += static_cast<double>(value) * value;
  }
  const auto n = static_cast<double>(values.size());
  // Five standard errors of the mean (range / sqrt(n)) and of the deviation (range / sqrt(2n)).
  EXPECT_NEAR(sum / n, 0, 5 * kRange / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(sum_of_squares / n), kRange, 5 * kRange / std::sqrt(2 * n));
}

TEST(InitializeParameter, AnyPieceEqualsTheSameElementsOfTheWhole) {
  const Parameter parameter = matrix("model.layers.3.mlp.up_proj.weight", 9, 11);
  const auto whole = initialised(parameter, 0.02, 42, 0, 99);
  for (const int64_t begin : {0, 1, 2, 37, 98, 99}) {
    const auto piece = initialised(parameter, 0.02, 42, begin, 99 - begin);
    EXPECT_EQ(piece, std::vector<float>(whole.begin() + begin, whole.end())) << "begin " << begin;
  }
}

TEST(InitializeParameter, DependsOnSeedAndName) {
  const auto values = initialised(matrix("a.weight", 2, 8), 1, 42, 0, 16);
  EXPECT_NE(values, initialised(matrix("a.weight", 2, 8), 1, 43, 0, 16));
  EXPECT_NE(values, initialised(matrix("b.weight", 2, 8), 1, 42, 0, 16));
}

TEST(InitializeParameter, NormsAreOnesAndBiasesZeros) {
  EXPECT_EQ(initialised(vector_of(ParameterKind::kNorm, 5), 0.02, 1, 0, 5), std::vector<float>(5, 1.0f));
  EXPECT_EQ(initialised(vector_of(ParameterKind::kBias, 5), 0.02, 1, 0, 5), std::vector<float>(5, 0.0f));
}

// T5PreTrainedModel._init_weights with initializer_factor 2.
TEST(InitializeParameter, MatricesOfT5DeviateByTheirWidths) {
  ModelConfig config;
  config.initializer_range = 2;
  config.hidden_size = 100;
  config.head_dim = 4;
  config.encoder_decoder = EncoderDecoder();
  const auto deviation_of = [&](Parameter parameter, ParameterKind kind) {
    parameter.kind = kind;
    std::vector<float> values(static_cast<size_t>(parameter.num_elements));
    const auto count = std::ssize(values);
    initialize_parameter(parameter, config, 7, 0, TensorView(values.data(), DType::kF32, {count}));
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    return std::sqrt(squares / static_cast<double>(count));
  };
  const auto expect = [&](const std::string& name, ParameterKind kind, double expected) {
    EXPECT_NEAR(deviation_of(matrix(name, 200, 100), kind), expected, 0.03 * expected) << name;
  };
  expect("encoder.block.0.layer.0.SelfAttention.q.weight", ParameterKind::kMatrix, 2 / std::sqrt(400.0));
  expect("encoder.block.0.layer.0.SelfAttention.k.weight", ParameterKind::kMatrix, 0.2);
  expect("decoder.block.0.layer.2.DenseReluDense.wi_1.weight", ParameterKind::kMatrix, 0.2);
  expect("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", ParameterKind::kPositionBias,
         0.2);
  expect("shared.weight", ParameterKind::kEmbedding, 2);
}

// ModernBertPreTrainedModel._init_weights: trunc_normal_ at two deviations leaves 0.8796 of one.
TEST(InitializeParameter, MatricesOfModernBertAreCutOff) {
  ModelConfig config;
  config.family = "modernbert";
  config.initializer_range = 0.02;
  config.num_hidden_layers = 8;
  config.encoder = EncoderOnly{.initializer_cutoff_factor = 2};
  const auto check = [&](const std::string& name, double deviation) {
    const Parameter parameter = matrix(name, 200, 100);
    std::vector<float> values(20'000);
    initialize_parameter(parameter, config, 7, 0, TensorView(values.data(), DType::kF32, {20'000}));
    double squares = 0;
    float largest = 0;
    for (const float value : values) {
      squares += static_cast<double>(value) * value;
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_NEAR(std::sqrt(squares / 20'000), 0.8796 * deviation, 0.02 * deviation) << name;
    EXPECT_LE(largest, 2.0001 * deviation) << name;
    EXPECT_GT(largest, 1.95 * deviation) << name;
  };
  check("model.layers.0.attn.Wqkv.weight", 0.02);
  check("model.layers.0.attn.Wo.weight", 0.005);
  check("model.layers.0.mlp.Wi.weight", 0.02);
  check("model.layers.0.mlp.Wo.weight", 0.005);
  check("head.dense.weight", 0.005);
  check("model.embeddings.tok_embeddings.weight", 0.02);
}

TEST(InitializeParameter, Bf16IsTheRoundedFloat) {
  const Parameter parameter = matrix("model.embed_tokens.weight", 3, 17);
  const auto values = initialised(parameter, 0.02, 5, 0, 51);
  std::vector<bf16> rounded(51);
  initialize_parameter(parameter, ModelConfig(), 5, 0, TensorView(rounded.data(), DType::kBF16, {51}));
  for (size_t i = 0; i < rounded.size(); ++i) EXPECT_EQ(rounded[i].bits, to_bf16(values[i]).bits) << i;
}

}  // namespace
}  // namespace tessera
