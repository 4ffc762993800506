#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/llama/llama_generator.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

constexpr uint64_t kGeneratorSeed = 11;
constexpr int64_t kLength = 23;

// Roundings between a token and its logits: 11 results per layer and the head, sums of up to 12 terms; in
// BF16 one rounding to 8 bits per result. Two computations, three standard deviations.
double bound_of(const ModelConfig& config, DType dtype) {
  const double results = std::sqrt(11.0 * static_cast<double>(config.num_hidden_layers) + 3);
  const double rounding = dtype == DType::kF32 ? std::sqrt(12.0) * 0x1.0p-24 : 0x1.0p-9 / std::sqrt(3.0);
  return std::sqrt(2.0) * 3 * results * rounding;
}

class GeneratorOptions : public testing::TestWithParam<std::tuple<NamedConfig, DType>> {};

TEST_P(GeneratorOptions, LogitsEqualThoseOfTheWholeSequenceHoweverItIsFed) {
  const auto& [named, dtype] = GetParam();
  const ModelConfig& config = named.config;
  const auto rows = random_rows({kLength}, config.vocab_size, kGeneratorSeed);
  const PackedBatch batch = pack(rows);
  const std::vector<int32_t>& ids = rows[0].ids;
  TestModel test(config, dtype, random_weights(parameter_layout(config), 0.3f, kGeneratorSeed));
  test.model().reserve(limits_of(batch));
  const std::vector<float> expected = test.logits(batch);
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::abs(logit));
  const double bound = bound_of(config, dtype) * largest;

  LlamaGenerator generator(test.model(), kLength, /*max_chunk=*/7);
  // The prompt in one call (17: chunks of 7, 7 and 3) or token by token, then one token at a time.
  for (const size_t prompt : {17, 14, 5, 1}) {
    generator.reset();
    EXPECT_EQ(generator.length(), 0);
    for (size_t t = prompt; t <= ids.size(); ++t) {
      const auto next = t == prompt ? std::span(ids).first(prompt) : std::span(ids).subspan(t - 1, 1);
      const std::span<const float> logits = generator.feed(next);
      ASSERT_EQ(generator.length(), static_cast<int64_t>(t));
      for (size_t v = 0; v < logits.size(); ++v) {
        ASSERT_NEAR(logits[v], expected[(t - 1) * logits.size() + v], bound)
            << "after " << t << " tokens, prompt of " << prompt << ", logit " << v << ", seed "
            << kGeneratorSeed;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, GeneratorOptions,
                         testing::Combine(testing::ValuesIn(all_option_configs()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::string(dtype_name(std::get<1>(test.param)));
                         });

TEST(Generator, MoreTokensThanItsCacheHoldsAreAnError) {
  const ModelConfig config = tiny_config();
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, kGeneratorSeed));
  LlamaGenerator generator(test.model(), 4);
  const std::vector<int32_t> ids = {1, 2, 3};
  generator.feed(ids);
  try {
    generator.feed(ids);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("would have 6 tokens, its cache holds 4"));
  }
  EXPECT_EQ(generator.length(), 3);
  generator.feed(std::span(ids).first(1));
  EXPECT_EQ(generator.length(), 4);
}

TEST(Generator, TrainingStepsBetweenTokensDoNotDisturbIt) {
  const ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({9, 6}, config.vocab_size, kGeneratorSeed));
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, kGeneratorSeed));
  test.model().reserve(limits_of(batch));
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
  const auto feed_all = [&](bool with_training) {
    LlamaGenerator generator(test.model(), 8);
    std::vector<float> logits;
    for (size_t t = 0; t < ids.size(); ++t) {
      if (with_training) test.model().forward_backward(batch, 1.0f);
      const auto last = generator.feed(std::span(ids).subspan(t, 1));
      logits.assign(last.begin(), last.end());
    }
    return logits;
  };
  EXPECT_EQ(feed_all(true), feed_all(false));
}

// The cache takes 2 x layers x positions x key-value width; buffers do not grow with it beyond what attention
// needs.
TEST(Generator, MemoryGrowsWithTheCapacityByTheCache) {
  const ModelConfig config = tiny_config();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestModel test(config, dtype, random_weights(parameter_layout(config), 0.3f, 3));
    const auto bytes = [&](int64_t capacity) {
      return LlamaGenerator::memory_bytes(test.model(), capacity, 16);
    };
    const int64_t per_position =
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype_bytes(dtype);
    EXPECT_GE(bytes(1 << 20) - bytes(1 << 16), per_position * ((1 << 20) - (1 << 16))) << dtype_name(dtype);
    EXPECT_GE(bytes(1 << 16), per_position << 16) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace tessera
