#include "formats/huggingface/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"

namespace tessera {
namespace {

template <typename To, typename From>
std::vector<To> convert(DType from, const std::vector<From>& source, DType to) {
  std::vector<To> result(source.size());
  const auto unfit =
      convert_elements(from, reinterpret_cast<const std::byte*>(source.data()), to,
                       reinterpret_cast<std::byte*>(result.data()), static_cast<int64_t>(source.size()));
  EXPECT_FALSE(unfit.has_value()) << *unfit;
  return result;
}

std::vector<uint16_t> every_16_bit_value() {
  std::vector<uint16_t> values(1 << 16);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

TEST(ConvertFloats, EveryHalfSurvivesTheWayThroughWiderTypes) {
  const std::vector<uint16_t> all = every_16_bit_value();
  for (const DType half : {DType::kBF16, DType::kF16}) {
    const auto single = convert<float>(half, all, DType::kF32);
    const auto wide = convert<double>(half, all, DType::kF64);
    const auto back = convert<uint16_t>(DType::kF32, single, half);
    const auto back_from_wide = convert<uint16_t>(DType::kF64, wide, half);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(single[i])) {
        ASSERT_TRUE(std::isnan(wide[i])) << dtype_name(half) << " bits " << i;
        continue;
      }
      ASSERT_EQ(static_cast<double>(single[i]), wide[i]) << dtype_name(half) << " bits " << i;
      ASSERT_EQ(back[i], all[i]) << dtype_name(half) << " bits " << i;
      ASSERT_EQ(back_from_wide[i], all[i]) << dtype_name(half) << " bits " << i;
    }
  }
}

TEST(ConvertFloats, DoublesAreRoundedOnce) {
  // A hair above the tie between 1 and 1 + 2^-7: rounding to float32 first would give the tie itself, which
  // rounds down.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(convert<uint16_t>(DType::kF64, std::vector<double>{above}, DType::kBF16)[0],
            to_bf16(1 + 0x1p-7f).bits);
  // A hair below the tie between 1 + 2^-7 and 1 + 2^-6.
  const double below = 1 + 0x3p-8 - 0x1p-40;
  EXPECT_EQ(convert<uint16_t>(DType::kF64, std::vector<double>{-below}, DType::kBF16)[0],
            to_bf16(-1 - 0x1p-7f).bits);
  const double half_tie = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(convert<uint16_t>(DType::kF64, std::vector<double>{half_tie}, DType::kF16)[0],
            to_f16(1 + 0x1p-10f).bits);
  // The smallest F16 is 2^-24: half of it is a tie that rounds to zero, a hair more is not.
  EXPECT_EQ(convert<uint16_t>(DType::kF64, std::vector<double>{0x1p-25, 0x1p-25 + 0x1p-70}, DType::kF16),
            (std::vector<uint16_t>{0, 1}));
}

TEST(ConvertFloats, ExtremesKeepSignAndKind) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {kInf, -kInf, std::nan(""), 1e300, -1e300, -0.0, 1e-300};
  const auto single = convert<float>(DType::kF64, values, DType::kF32);
  EXPECT_EQ(single[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(single[4], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(single[2]));
  EXPECT_TRUE(std::signbit(single[5]));
  for (const DType half : {DType::kBF16, DType::kF16}) {
    const auto bits = convert<uint16_t>(DType::kF64, values, half);
    const auto back = convert<float>(half, bits, DType::kF32);
    EXPECT_EQ(back[0], std::numeric_limits<float>::infinity());
    EXPECT_EQ(back[3], std::numeric_limits<float>::infinity());
    EXPECT_EQ(back[4], -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(back[2]));
    EXPECT_EQ(back[6], 0);
  }
  EXPECT_EQ(convert<uint16_t>(DType::kF32, std::vector<float>{65519.0f, 65520.0f, -70000.0f}, DType::kF16),
            (std::vector<uint16_t>{0x7BFF, 0x7C00, 0xFC00}));
}

TEST(ConvertFloats, HalvesConvertToEachOther) {
  const std::vector<uint16_t> ones = {to_bf16(1).bits, to_bf16(-2.5f).bits, to_bf16(1e10f).bits};
  EXPECT_EQ(convert<uint16_t>(DType::kBF16, ones, DType::kF16),
            (std::vector<uint16_t>{to_f16(1).bits, to_f16(-2.5f).bits, 0x7C00}));
}

TEST(ConvertIntegers, KeepTheirValueInEveryWiderType) {
  const std::vector<int8_t> small = {-128, -1, 0, 127};
  EXPECT_EQ(convert<int64_t>(DType::kI8, small, DType::kI64), (std::vector<int64_t>{-128, -1, 0, 127}));
  EXPECT_EQ(convert<int32_t>(DType::kU16, std::vector<uint16_t>{0, 65535}, DType::kI32),
            (std::vector<int32_t>{0, 65535}));
  EXPECT_EQ(convert<int64_t>(DType::kBool, std::vector<uint8_t>{0, 1}, DType::kI64),
            (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(convert<uint16_t>(DType::kI64, std::vector<int64_t>{0, 65535}, DType::kU16),
            (std::vector<uint16_t>{0, 65535}));
}

TEST(ConvertIntegers, TheFirstThatDoesNotFitIsNamed) {
  const auto unfit = [](DType from, const auto& source, DType to) {
    std::vector<int64_t> buffer(source.size());
    return convert_elements(from, reinterpret_cast<const std::byte*>(source.data()), to,
                            reinterpret_cast<std::byte*>(buffer.data()), static_cast<int64_t>(source.size()));
  };
  const std::vector<int64_t> wide = {1, 2, int64_t{1} << 31, -1};
  EXPECT_EQ(unfit(DType::kI64, wide, DType::kI32), 2);
  EXPECT_EQ(integer_element(DType::kI64, reinterpret_cast<const std::byte*>(wide.data()), 2), "2147483648");
  EXPECT_EQ(unfit(DType::kI64, wide, DType::kU64), 3);
  const std::vector<uint64_t> huge = {~uint64_t{0}};
  EXPECT_EQ(unfit(DType::kU64, huge, DType::kI64), 0);
  EXPECT_EQ(integer_element(DType::kU64, reinterpret_cast<const std::byte*>(huge.data()), 0),
            "18446744073709551615");
}

TEST(Convert, KindsDoNotMix) {
  EXPECT_FALSE(can_convert(DType::kF32, DType::kI32));
  EXPECT_FALSE(can_convert(DType::kI64, DType::kF64));
  EXPECT_FALSE(can_convert(DType::kF8E4M3, DType::kF32));
  EXPECT_TRUE(can_convert(DType::kF8E4M3, DType::kF8E4M3));
  std::vector<float> values(4);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  EXPECT_THROW(convert_elements(DType::kF32, bytes, DType::kI32, bytes, 4), Error);
}

}  // namespace
}  // namespace tessera
