#include "kernels/quantized_weight/gradient_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "platform/subnormals.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr GradientCode kCodes[] = {GradientCode::kInt8, GradientCode::kInt4};
// Tails of bytes, vectors and blocks.
constexpr int64_t kCounts[] = {0, 1, 2, 5, 63, 64, 65, 127, 128, 129, 255, 1000, 4096, 5001};

float limit(GradientCode code) { return code == GradientCode::kInt8 ? 127 : 7; }

// Values to be sent, the errors of those before them, and what becomes of both.
struct Example {
  Example(GradientCode which, int64_t size, uint64_t seed)
      : code(which), count(size), x(DType::kF32, {std::max<int64_t>(size, 1)}), e(DType::kBF16, x.shape()) {
    x.fill_normal(seed, 0.02f);
    e.fill_normal(seed + 1000, 0.002f);
  }

  // Returns the blocks; their errors replace those of e.
  std::vector<std::byte> encode(bool keeps_errors = false) {
    std::vector<float> memory(static_cast<size_t>(gradient_blocks_bytes(code, count) / 4) + 2, 77.0f);
    auto* const blocks = reinterpret_cast<std::byte*>(memory.data());
    bf16* const errors = e.view().as<bf16>();
    encode_gradient_blocks(code, x.view().as<float>(), errors, count, blocks,
                           keeps_errors ? nullptr : errors);
    EXPECT_EQ(memory.back(), 77.0f) << "written after the end";
    EXPECT_TRUE(e.guards_intact());
    return {blocks, blocks + gradient_blocks_bytes(code, count)};
  }
  std::vector<float> decode(const std::vector<std::byte>& blocks) const {
    GuardedTensor y(DType::kF32, x.shape());
    std::vector<float> aligned(blocks.size() / 4 + 1);
    std::copy(blocks.begin(), blocks.end(), reinterpret_cast<std::byte*>(aligned.data()));
    decode_gradient_blocks(code, reinterpret_cast<const std::byte*>(aligned.data()), count, 0, count,
                           y.view().as<float>());
    EXPECT_TRUE(y.guards_intact());
    const float* const values = y.view().as<float>();
    return {values, values + count};
  }
  float largest_of_block(int64_t i) const {
    float largest = 0;
    for (int64_t k = i / kGradientBlock * kGradientBlock;
         k < std::min((i / kGradientBlock + 1) * kGradientBlock, count); ++k) {
      largest = std::max(largest, std::abs(static_cast<float>(x[k]) + static_cast<float>(e[k])));
    }
    return largest;
  }

  GradientCode code;
  int64_t count;
  GuardedTensor x, e;
};

TEST(GradientBlocks, TakeOneByteOrHalfOneAValueAndFourABlock) {
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt8, 0), 0);
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt8, 129), 8 + 129);
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt4, 0), 0);
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt4, 1), 4 + 1);
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt4, 128), 4 + 64);
  EXPECT_EQ(gradient_blocks_bytes(GradientCode::kInt4, 131), 8 + 66);
}

// By the formula, in double: half a step, and what float32 loses; the error is what was lost, rounded to
// bf16.
TEST(GradientBlocks, MoveAValueByAtMostHalfAStepAndKeepTheError) {
  for (const GradientCode code : kCodes) {
    for (const int64_t count : kCounts) {
      Example of(code, count, static_cast<uint64_t>(count));
      const Example before = of;
      const std::vector<float> y = of.decode(of.encode());
      for (int64_t i = 0; i < count; ++i) {
        const double c = before.x[i] + before.e[i];
        const double step = before.largest_of_block(i) / limit(code);
        ASSERT_NEAR(y[static_cast<size_t>(i)], c, 0.50001 * step) << "element " << i << " of " << count;
        ASSERT_NEAR(of.e[i], c - y[static_cast<size_t>(i)], step / 2 / 256 + 1e-6 * step) << "element " << i;
        const double q = y[static_cast<size_t>(i)] / step;
        ASSERT_NEAR(q, std::round(q), 1e-4) << "element " << i << " is no multiple of the step";
      }
    }
  }
}

// The sum received over many steps equals the sum sent, up to the last error.
TEST(GradientBlocks, LoseNothingOverManySteps) {
  for (const GradientCode code : kCodes) {
    Example of(code, 300, 7);
    of.e.fill(0);
    std::vector<double> sent(300), arrived(300);
    for (uint64_t step = 0; step < 50; ++step) {
      of.x.fill_normal(step, 0.02f, 0.001f);
      for (int64_t i = 0; i < 300; ++i) sent[static_cast<size_t>(i)] += of.x[i];
      const std::vector<float> y = of.decode(of.encode());
      for (size_t i = 0; i < y.size(); ++i) arrived[i] += y[i];
    }
    for (int64_t i = 0; i < 300; ++i) {
      const auto at = static_cast<size_t>(i);
      const double step = of.largest_of_block(i) / limit(code);
      EXPECT_NEAR(arrived[at], sent[at], step) << "element " << i;
      EXPECT_NEAR(arrived[at] + of.e[i], sent[at], 50 * step / 256) << "element " << i;
    }
  }
}

TEST(GradientBlocks, SendErrorsAlongWithoutChangingThem) {
  for (const GradientCode code : kCodes) {
    Example of(code, 1000, 3);
    const std::string before = of.e.bits();
    const std::vector<std::byte> blocks = of.encode(/*keeps_errors=*/true);
    EXPECT_EQ(of.e.bits(), before);
    EXPECT_EQ(of.encode(), blocks);
    EXPECT_NE(of.e.bits(), before);
  }
}

TEST(GradientBlocks, AValueThatIsNotFiniteSpoilsItsBlockAloneAndLeavesNoError) {
  for (const GradientCode code : kCodes) {
    for (const float special :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Example of(code, 384, 4);
      of.x.set(200, special);
      const std::vector<float> y = of.decode(of.encode());
      for (int64_t i = 0; i < 384; ++i) {
        const bool is_spoilt = i >= 128 && i < 256;
        EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), is_spoilt) << "element " << i;
        EXPECT_TRUE(!is_spoilt || of.e[i] == 0) << "element " << i;
      }
      EXPECT_NE(of.e[127] + of.e[126], 0);
      EXPECT_NE(of.e[256] + of.e[257], 0);
    }
  }
}

TEST(GradientBlocks, TinyValuesWaitInTheErrors) {
  for (const GradientCode code : kCodes) {
    Example of(code, 130, 5);
    of.x.fill(0x1p-102f);
    of.e.fill(0);
    for (const float y : of.decode(of.encode())) EXPECT_EQ(y, 0);
    for (int64_t i = 0; i < 130; ++i) EXPECT_EQ(of.e[i], 0x1p-102);
  }
}

TEST(GradientBlocks, DecodeFromAnyBlockOn) {
  for (const GradientCode code : kCodes) {
    Example of(code, 1001, 6);
    const std::vector<std::byte> blocks = of.encode();
    const std::vector<float> whole = of.decode(blocks);
    for (const int64_t begin : {0, 128, 896}) {
      for (const int64_t size : {int64_t{1}, int64_t{100}, 1001 - begin}) {
        std::vector<float> y(static_cast<size_t>(size));
        decode_gradient_blocks(code, blocks.data(), 1001, begin, size, y.data());
        EXPECT_TRUE(std::equal(y.begin(), y.end(), whole.begin() + begin)) << begin << ", " << size;
      }
    }
  }
}

// Signs of zeros included.
TEST(GradientBlocks, HaveTheSameBitsWithEveryInstructionSet) {
  const SubnormalsAreZero as_in_a_pool;
  const auto usable = quantized_rows_table().usable();
  const auto& reference = usable.back();
  for (const int bound : {127, 7}) {
    for (int64_t count = 1; count <= kGradientBlock; ++count) {
      Example of(GradientCode::kInt8, count, static_cast<uint64_t>(count));
      if (count % 5 == 0) of.x.set(count / 2, -0.0f);
      if (count % 7 == 0) of.x.set(count / 3, std::numeric_limits<float>::infinity());
      if (count % 11 == 0) of.x.fill(-0x1p-101f);
      const auto run = [&](const Implementation<QuantizedKernels>& kernels) {
        std::vector<int8_t> codes(static_cast<size_t>(count));
        std::vector<bf16> errors(static_cast<size_t>(count));
        const float scale = kernels.kernels.quantize_with_feedback(
            of.x.view().as<float>(), of.e.view().as<bf16>(), count, bound, codes.data(), errors.data());
        std::vector<uint32_t> bits = {std::bit_cast<uint32_t>(scale)};
        for (const int8_t code : codes) bits.push_back(static_cast<uint8_t>(code));
        for (const bf16 error : errors) bits.push_back(error.bits);
        return bits;
      };
      for (const auto& implementation : usable) {
        ASSERT_EQ(run(implementation), run(reference))
            << describe(implementation) << ", " << count << " values";
      }
    }
  }
}

}  // namespace
}  // namespace tessera
