#include "kernels/quantized_weight/int8_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

std::vector<bf16> decoded(const std::vector<bf16>& x) {
  const int64_t count = std::ssize(x);
  std::vector<float> memory(static_cast<size_t>(divide_up(int8_blocks_bytes(count), int64_t{4})) + 1, 77.0f);
  encode_int8_blocks(x.data(), count, reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(memory.back(), 77.0f) << "written behind the end";
  std::vector<bf16> y(x.size());
  decode_int8_blocks(reinterpret_cast<const std::byte*>(memory.data()), count, y.data());
  return y;
}

std::vector<bf16> normal_values(int64_t count, uint64_t seed) {
  GuardedTensor values(DType::kBF16, {std::max<int64_t>(count, 1)});
  values.fill_normal(seed, 0.02f);
  const bf16* data = values.view().as<bf16>();
  return {data, data + count};
}

TEST(Int8Blocks, TakeOneByteAValueAndFourABlock) {
  EXPECT_EQ(int8_blocks_bytes(0), 0);
  EXPECT_EQ(int8_blocks_bytes(1), 5);
  EXPECT_EQ(int8_blocks_bytes(128), 132);
  EXPECT_EQ(int8_blocks_bytes(129), 137);
}

// Half a step, and half a unit in the last place of bf16 for rounding the product.
TEST(Int8Blocks, MoveAValueByAtMostHalfAStep) {
  for (const int64_t count : {1, 5, 127, 128, 129, 1000, 4096}) {
    const std::vector<bf16> x = normal_values(count, static_cast<uint64_t>(count));
    const std::vector<bf16> y = decoded(x);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = i / kInt8Block * kInt8Block, end = std::min(begin + kInt8Block, count);
      float largest = 0;
      for (int64_t k = begin; k < end; ++k)
        largest = std::max(largest, std::abs(to_float(x[static_cast<size_t>(k)])));
      const float value = to_float(x[static_cast<size_t>(i)]);
      ASSERT_NEAR(to_float(y[static_cast<size_t>(i)]), value,
                  largest / 254 * 1.0001f + std::abs(value) / 256 + largest / 254 / 256)
          << "element " << i << " of " << count;
    }
  }
}

TEST(Int8Blocks, KeepTheLargestValueOfABlockAndZeros) {
  std::vector<bf16> x = normal_values(300, 3);
  std::fill(x.begin() + 128, x.begin() + 256, to_bf16(0.0f));
  x[5] = to_bf16(-1.0f);
  x[299] = to_bf16(0.375f);
  const std::vector<bf16> y = decoded(x);
  EXPECT_EQ(to_float(y[5]), -1.0f);
  EXPECT_EQ(to_float(y[299]), 0.375f);
  for (size_t i = 128; i < 256; ++i) EXPECT_EQ(to_float(y[i]), 0.0f);
}

TEST(Int8Blocks, AValueThatIsNotFiniteSpoilsItsBlockAlone) {
  for (const float special :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<bf16> x = normal_values(384, 4);
    x[200] = to_bf16(special);
    const std::vector<bf16> y = decoded(x);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(to_float(y[i])), i >= 128 && i < 256) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace tessera
