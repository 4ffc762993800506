#include "kernels/block_code/block_code.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/divide_up.h"
#include "base/rng.h"

namespace tessera {
namespace {

constexpr DType kCodes[] = {DType::kI8, DType::kU8};

// Magnitudes over ten powers of ten, with zeros between them.
std::vector<float> values_of(DType dtype, int64_t count, uint64_t seed) {
  const CounterRng rng(seed, 0);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<uint64_t>(2 * i);
    const float value = rng.normal(at) * std::pow(10.0f, -10 * std::abs(rng.normal(at + 1)) / 3);
    values.push_back(i % 7 == 3 ? 0.0f : dtype == DType::kI8 ? value : value * value);
  }
  return values;
}

std::vector<std::byte> encoded(DType dtype, std::span<const float> values) {
  std::vector<std::byte> blocks(
      static_cast<size_t>(divide_up(std::ssize(values), kCodeBlock) * kCodeBlockBytes));
  encode_values(dtype, values, blocks.data());
  return blocks;
}

std::vector<float> decoded(DType dtype, const std::vector<std::byte>& blocks, size_t count) {
  std::vector<float> values(count);
  read_codes(dtype, blocks.data(), 0, values);
  return values;
}

// The largest magnitude of the block of element i.
float largest_near(const std::vector<float>& values, size_t i) {
  constexpr auto kBlock = static_cast<size_t>(kCodeBlock);
  float largest = 0;
  for (size_t k = i / kBlock * kBlock; k < std::min(values.size(), i / kBlock * kBlock + kBlock); ++k) {
    largest = std::max(largest, std::abs(values[k]));
  }
  return largest;
}

TEST(BlockCode, KeepsFourSignificantBits) {
  for (const int64_t count : {1, 31, 32, 33, 1000}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const std::vector<float> values = values_of(DType::kI8, count, seed);
      const std::vector<float> found = decoded(DType::kI8, encoded(DType::kI8, values), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        // Half a unit of the mantissa, or of the smallest code.
        const float bound = std::max(std::abs(values[i]) * 0x1p-4f, largest_near(values, i) * 0x1.2p-14f);
        ASSERT_NEAR(found[i], values[i], bound) << "index " << i << " of " << count << " seed " << seed;
      }
    }
  }
}

TEST(BlockCode, KeepsRootsInFiveBitsAndNoSquareBecomesZero) {
  for (const int64_t count : {1, 31, 32, 33, 1000}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const std::vector<float> values = values_of(DType::kU8, count, seed);
      const std::vector<float> found = decoded(DType::kU8, encoded(DType::kU8, values), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const float root = std::sqrt(values[i]);
        const float bound = std::max(root * 0x1p-5f, std::sqrt(largest_near(values, i)) * 0x1.2p-14f);
        ASSERT_NEAR(std::sqrt(found[i]), root, bound) << "index " << i << " of " << count << " seed " << seed;
        ASSERT_EQ(found[i] == 0, values[i] == 0) << "index " << i;
      }
    }
  }
}

TEST(BlockCode, CodesWhatItDecodedWithoutLoss) {
  for (const DType dtype : kCodes) {
    for (uint64_t seed = 0; seed < 32; ++seed) {
      std::vector<float> values = values_of(dtype, 200, seed);
      for (float& value : values) value *= std::ldexp(1.0f, 8 * static_cast<int>(seed) - 136);
      const std::vector<float> once = decoded(dtype, encoded(dtype, values), values.size());
      EXPECT_EQ(decoded(dtype, encoded(dtype, once), values.size()), once)
          << dtype_name(dtype) << " seed " << seed;
    }
  }
}

// A checkpoint may be read in pieces that do not match its blocks, in any order.
TEST(BlockCode, PartsWrittenInAnyOrderMakeTheWhole) {
  for (const DType dtype : kCodes) {
    const size_t count = 200;
    const std::vector<float> values = decoded(dtype, encoded(dtype, values_of(dtype, count, 5)), count);
    for (uint64_t seed = 0; seed < 16; ++seed) {
      std::vector<std::byte> blocks(encoded(dtype, values).size());
      std::vector<size_t> cuts = {0, 5, 40, 41, 64, 90, 131, 150, count};
      std::vector<size_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
      for (size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[philox4x32(seed, i, 0)[0] % i]);
      }
      for (const size_t part : order) {
        write_codes(dtype, blocks.data(), static_cast<int64_t>(cuts[part]),
                    std::span(values).subspan(cuts[part], cuts[part + 1] - cuts[part]));
      }
      EXPECT_EQ(decoded(dtype, blocks, count), values) << dtype_name(dtype) << " seed " << seed;
      std::vector<float> middle(77);
      read_codes(dtype, blocks.data(), 50, middle);
      EXPECT_EQ(middle, std::vector<float>(values.begin() + 50, values.begin() + 127));
    }
  }
}

TEST(BlockCode, NoiseRoundsWithoutBias) {
  for (const DType dtype : kCodes) {
    // The neighbours of 0.9 + 0.001: 0.875 and 0.9375, roots of 0.96875 and 1.
    const float value = dtype == DType::kI8 ? 0.901f : 0.98f * 0.98f;
    const std::vector<float> values = {1.0f, value};
    double sum = 0;
    constexpr int kSteps = 4096;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<uint16_t> noise(static_cast<size_t>(kCodeBlock), static_cast<uint16_t>(step * 16));
      std::vector<std::byte> block(static_cast<size_t>(kCodeBlockBytes));
      encode_block(dtype, values, noise, block.data());
      std::vector<float> found(2);
      decode_block(dtype, block.data(), found);
      EXPECT_EQ(found[0], 1.0f);
      sum += dtype == DType::kI8 ? found[1] : std::sqrt(found[1]);
    }
    EXPECT_NEAR(sum / kSteps, dtype == DType::kI8 ? 0.901 : 0.98, 1e-4) << dtype_name(dtype);
  }
}

TEST(BlockCode, ABlockWithAValueThatIsNotFiniteIsNotANumber) {
  for (const DType dtype : kCodes) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::nanf(""), std::bit_cast<float>(0x7FFFFFFFu)}) {
      std::vector<float> values(64, 1.0f);
      values[40] = bad;
      std::vector<float> found = decoded(dtype, encoded(dtype, values), 64);
      EXPECT_EQ(found[31], 1.0f);
      for (size_t i = 32; i < 64; ++i) EXPECT_TRUE(std::isnan(found[i])) << i;
      found = decoded(dtype, encoded(dtype, found), 64);
      EXPECT_TRUE(std::isnan(found[63]));
    }
  }
}

}  // namespace
}  // namespace tessera
