#include "model/blocks/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

ModelConfig llama31_config() {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000;
  return config;
}

// A float32 chain of at most six operations.
constexpr double kBound = 6 * 0x1.0p-24;

TEST(RopeFrequencies, DefaultIsThetaToTheMinusTwoIOverE) {
  const auto found = rope_inverse_frequencies(llama31_config(), global_rope(llama31_config()));
  ASSERT_EQ(found.size(), 64u);
  EXPECT_EQ(found[0], 1.0f);
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = std::pow(500000.0, -static_cast<double>(i) / 64);
    // The exponent is rounded too: log(theta) 2^-24 relative error.
    EXPECT_NEAR(found[i], expected, (kBound + std::log(500000.0) * 0x1.0p-24) * expected) << i;
  }
}

TEST(RopeFrequencies, LinearDividesByTheFactor) {
  ModelConfig config = llama31_config();
  const auto unscaled = rope_inverse_frequencies(config, global_rope(config));
  config.rope_scaling = {RopeType::kLinear, 3, 1, 4, 8192};
  const auto scaled = rope_inverse_frequencies(config, global_rope(config));
  for (size_t i = 0; i < scaled.size(); ++i) EXPECT_EQ(scaled[i], unscaled[i] / 3.0f) << i;
}

// Llama 3.1: wavelengths above 8192 are stretched by 8, those below 2048 kept, those between blended.
TEST(RopeFrequencies, Llama3ScalesByWavelength) {
  ModelConfig config = llama31_config();
  const auto unscaled = rope_inverse_frequencies(config, global_rope(config));
  config.rope_scaling = {RopeType::kLlama3, 8, 1, 4, 8192};
  const auto scaled = rope_inverse_frequencies(config, global_rope(config));
  int64_t kept = 0, blended = 0, stretched = 0;
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double f = unscaled[i];
    const double turns = 8192 * f / (2 * std::numbers::pi);  // of the original context
    if (turns > 4) {
      ++kept;
      EXPECT_EQ(scaled[i], unscaled[i]) << i;
    } else if (turns < 1) {
      ++stretched;
      EXPECT_EQ(scaled[i], unscaled[i] / 8.0f) << i;
    } else {
      ++blended;
      const double smooth = (turns - 1) / 3;
      const double expected = (1 - smooth) * f / 8 + smooth * f;
      EXPECT_NEAR(scaled[i], expected, 2 * kBound * f) << i;
      EXPECT_LT(scaled[i], unscaled[i]) << i;
      EXPECT_GT(scaled[i], unscaled[i] / 8) << i;
    }
  }
  // Counts among Llama 3.1's 64 frequencies.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(stretched, 29);
}

TEST(RopeTableBuffer, HoldsCosineAndSineOfFloat32Angles) {
  const ModelConfig config = llama31_config();
  const auto frequencies = rope_inverse_frequencies(config, global_rope(config));
  const RopeTableBuffer buffer(config, 1000);
  const RopeTable table = buffer.table();
  ASSERT_EQ(table.cos.shape(), (Shape{1000, 64}));
  ASSERT_EQ(table.sin.shape(), (Shape{1000, 64}));
  EXPECT_EQ(buffer.size_bytes(), RopeTableBuffer::size_bytes(config, 1000));
  for (const size_t position : {0, 1, 77, 999}) {
    for (size_t i = 0; i < 64; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_FLOAT_EQ(table.cos.as<float>()[position * 64 + i], std::cos(angle)) << position << " " << i;
      EXPECT_FLOAT_EQ(table.sin.as<float>()[position * 64 + i], std::sin(angle)) << position << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera
