// The shared vector functions on every instruction set: accuracy of the exponential, bit-exact conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

#ifndef TESSERA_VECTOR_TEST_ONCE
#define TESSERA_VECTOR_TEST_ONCE
namespace tessera {

struct VectorFunctions {
  void (*exp)(const float* x, int64_t count, float* y);
  void (*exp_normal)(const float* x, int64_t count, float* y);
  void (*reciprocal)(const float* x, int64_t count, float* y);
  void (*to_bf16)(const float* x, int64_t count, bf16* y);
  void (*groups_to_bf16)(const float* x, int64_t count, bf16* y);
  void (*groups_from_bf16)(const bf16* x, int64_t count, float* y);
  void (*from_bf16)(const bf16* x, int64_t count, float* y);
};

}  // namespace tessera
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

void exp_array(const float* x, int64_t count, float* y) {
  const FloatTag d;
  for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
    access.store(d, exp_nonpositive(d, access.load(d, x + i)), y + i);
  });
}

void exp_normal_array(const float* x, int64_t count, float* y) {
  const FloatTag d;
  for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
    access.store(d, exp_nonpositive_normal(d, access.load(d, x + i)), y + i);
  });
}

void reciprocal_array(const float* x, int64_t count, float* y) {
  const FloatTag d;
  for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
    access.store(d, reciprocal(d, access.load(d, x + i)), y + i);
  });
}

template <typename From, typename To>
void convert_array(const From* x, int64_t count, To* y) {
  const FloatTag d;
  for_each_vector(d, count,
                  [&](auto access, int64_t i) HWY_ATTR { access.store(d, access.load(d, x + i), y + i); });
}

// Converts in groups: float32 to and from the order of a group of bf16.
template <typename From, typename To>
void convert_groups(const From* x, int64_t count, To* y) {
  const FloatTag d;
  for_each_group<4>(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    if constexpr (std::is_same_v<From, float>) {
      auto group = access.template load_as<To>(d, x + i);
      access.store(d, group, y + i);
    } else {
      access.template store_as<From>(d, access.load(d, x + i), y + i);
    }
  });
}

const VectorFunctions kFunctions = {.exp = exp_array,
                                    .exp_normal = exp_normal_array,
                                    .reciprocal = reciprocal_array,
                                    .to_bf16 = convert_array<float, bf16>,
                                    .groups_to_bf16 = convert_groups<float, bf16>,
                                    .groups_from_bf16 = convert_groups<bf16, float>,
                                    .from_bf16 = convert_array<bf16, float>};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

std::vector<Implementation<VectorFunctions>> usable_functions() {
  return DispatchTable<VectorFunctions>("vector", TESSERA_HWY_TABLE(kFunctions)).usable();
}

class VectorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (isa_limit() == Isa::kRef) GTEST_SKIP() << "TESSERA_ISA=ref forbids all vectors";
  }
};
using VectorExp = VectorTest;
using VectorReciprocal = VectorTest;
using VectorConversion = VectorTest;

// Every 4099th bit pattern: a prime, so that all mantissas and exponents are covered.
std::vector<float> floats_between(float low, float high) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (value >= low && value <= high) values.push_back(value);
  }
  return values;
}

TEST_F(VectorExp, IsWithinTwoUnitsInTheLastPlace) {
  const std::vector<float> x = floats_between(-103.9f, 43);
  for (const auto& functions : usable_functions()) {
    std::vector<float> y(x.size());
    functions.kernels.exp(x.data(), std::ssize(x), y.data());
    double worst = 0;
    float worst_x = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const double unit = std::max(0x1p-149, std::exp2(std::floor(std::log2(exact)) - 23));
      const double error = std::abs(static_cast<double>(y[i]) - exact) / unit;
      if (!(error <= worst)) {
        worst = error;
        worst_x = x[i];
      }
    }
    EXPECT_LE(worst, 2) << isa_name(functions.isa) << " x " << worst_x;
  }
}

TEST_F(VectorExp, OfNormalResultsIsWithinTwoUnitsAndZeroBelow) {
  const std::vector<float> x = floats_between(-200, 43);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& functions : usable_functions()) {
    std::vector<float> y(x.size());
    functions.kernels.exp_normal(x.data(), std::ssize(x), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const double bound = exact < 0x1p-126 ? exact : 2 * std::exp2(std::floor(std::log2(exact)) - 23);
      // Around 2^-126 itself a single rounding may decide.
      ASSERT_LE(std::abs(static_cast<double>(y[i]) - exact), x[i] < -87.33f ? 1.0001 * 0x1p-126 : bound)
          << isa_name(functions.isa) << " x " << x[i];
    }
    const std::vector<float> limits = {-inf, std::numeric_limits<float>::lowest(), -1e9f, std::nanf("")};
    functions.kernels.exp_normal(limits.data(), std::ssize(limits), y.data());
    EXPECT_TRUE(y[0] == 0 && y[1] == 0 && y[2] == 0) << isa_name(functions.isa);
    EXPECT_TRUE(std::isnan(y[3])) << isa_name(functions.isa);
  }
}

TEST_F(VectorReciprocal, IsWithinOneUnitInTheLastPlace) {
  const std::vector<float> x = floats_between(1, 4);
  for (const auto& functions : usable_functions()) {
    std::vector<float> y(x.size());
    functions.kernels.reciprocal(x.data(), std::ssize(x), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = 1 / static_cast<double>(x[i]);
      const double unit = std::exp2(std::floor(std::log2(exact)) - 23);
      ASSERT_LE(std::abs(static_cast<double>(y[i]) - exact), unit)
          << isa_name(functions.isa) << " x " << x[i];
    }
  }
}

TEST_F(VectorExp, LimitsAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f,    -0.0f,        -inf, -1e30f, std::numeric_limits<float>::lowest(),
                                -104.5f, std::nanf("")};
  for (const auto& functions : usable_functions()) {
    std::vector<float> y(x.size());
    functions.kernels.exp(x.data(), std::ssize(x), y.data());
    EXPECT_EQ(y[0], 1) << isa_name(functions.isa);
    EXPECT_EQ(y[1], 1) << isa_name(functions.isa);
    for (size_t i = 2; i < 6; ++i) EXPECT_EQ(y[i], 0) << isa_name(functions.isa) << " x " << x[i];
    EXPECT_TRUE(std::isnan(y[6])) << isa_name(functions.isa);
  }
}

TEST_F(VectorConversion, RoundsToBf16AsTheScalarFunction) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 4099) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  // Ties, just beside them, and the largest NaN, which must not round up to zero.
  for (const uint32_t bits : {0x3F808000u, 0x3F818000u, 0x3F807FFFu, 0x3F808001u, 0x7F7FFFFFu, 0x7F800000u,
                              0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  for (const auto& functions : usable_functions()) {
    std::vector<bf16> y(x.size()), by_groups(x.size());
    functions.kernels.to_bf16(x.data(), std::ssize(x), y.data());
    functions.kernels.groups_to_bf16(x.data(), std::ssize(x), by_groups.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(by_groups[i].bits, y[i].bits) << isa_name(functions.isa) << " x " << x[i];
      const bool flushed = std::fpclassify(x[i]) == FP_SUBNORMAL && functions.isa == Isa::kAvx512Bf16;
      const uint16_t expected = flushed ? to_bf16(std::copysign(0.0f, x[i])).bits : to_bf16(x[i]).bits;
      ASSERT_EQ(y[i].bits, expected) << isa_name(functions.isa) << " x " << x[i];
    }
  }
}

TEST_F(VectorConversion, ReadsEveryBf16AndNothingOutside) {
  std::vector<bf16> x;
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) x.push_back(bf16{static_cast<uint16_t>(bits)});
  for (const auto& functions : usable_functions()) {
    for (const auto convert : {functions.kernels.from_bf16, functions.kernels.groups_from_bf16}) {
      for (const int64_t count : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 0x10000}) {
        std::vector<float> y(static_cast<size_t>(count) + 1, 123.0f);
        convert(x.data() + 0x10000 - count, count, y.data());
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(y[static_cast<size_t>(i)]),
                    static_cast<uint32_t>(x[static_cast<size_t>(0x10000 - count + i)].bits) << 16)
              << isa_name(functions.isa) << " count " << count << " element " << i;
        }
        ASSERT_EQ(y.back(), 123.0f) << isa_name(functions.isa) << " count " << count;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
#endif
