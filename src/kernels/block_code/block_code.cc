#include "kernels/block_code/block_code.h"

#include <array>
#include <limits>

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {
namespace {

constexpr auto kBlockSize = static_cast<size_t>(kCodeBlock);
constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kQuietNan = 0x7FC00000u;

template <int kMantissaBits>
uint32_t scale_of(std::span<const uint32_t> magnitudes) {
  uint32_t max_bits = 0;
  for (const uint32_t bits : magnitudes) max_bits = std::max(max_bits, bits);
  return block_scale<kMantissaBits>(max_bits);
}

void encode_signed(std::span<const float> values, std::span<const uint16_t> noise, uint8_t* block) {
  std::array<uint32_t, kBlockSize> magnitudes = {};
  for (size_t i = 0; i < values.size(); ++i) magnitudes[i] = std::bit_cast<uint32_t>(values[i]) & ~kSignBit;
  const uint32_t scale = scale_of<kSignedMantissaBits>(magnitudes);
  block[0] = static_cast<uint8_t>(scale);
  for (size_t i = 0; i < kBlockSize; ++i) {
    const uint32_t sign = i < values.size() && std::signbit(values[i]) ? 0x80u : 0;
    const uint32_t code = scale == kNotFiniteScale
                              ? 0
                              : magnitude_code<kSignedMantissaBits>(magnitudes[i], scale, noise[i] << 4);
    block[1 + i] = static_cast<uint8_t>(sign | code);
  }
}

void encode_squares(std::span<const float> values, std::span<const uint16_t> noise, uint8_t* block) {
  std::array<uint32_t, kBlockSize> roots = {};
  for (size_t i = 0; i < values.size(); ++i) {
    // NaN for negative values. A subnormal value is zero, as where subnormal numbers are.
    if (!(std::abs(values[i]) < std::numeric_limits<float>::min())) {
      roots[i] = std::bit_cast<uint32_t>(std::sqrt(values[i])) & ~kSignBit;
    }
  }
  const uint32_t scale = scale_of<kSquareMantissaBits>(roots);
  block[0] = static_cast<uint8_t>(scale);
  for (size_t i = 0; i < kBlockSize; ++i) {
    const uint32_t code = magnitude_code<kSquareMantissaBits>(roots[i], scale, noise[i] << 3);
    block[1 + i] = static_cast<uint8_t>(roots[i] == 0 || scale == kNotFiniteScale ? 0 : std::max(code, 1u));
  }
}

}  // namespace

void encode_block(DType dtype, std::span<const float> values, std::span<const uint16_t> noise,
                  std::byte* block) {
  TESSERA_CHECK(is_block_code(dtype) && values.size() <= kBlockSize && noise.size() == kBlockSize, "{} {}",
                dtype_name(dtype), values.size());
  auto* const bytes = reinterpret_cast<uint8_t*>(block);
  if (dtype == DType::kI8) {
    encode_signed(values, noise, bytes);
  } else {
    encode_squares(values, noise, bytes);
  }
}

void decode_block(DType dtype, const std::byte* block, std::span<float> values) {
  TESSERA_CHECK(is_block_code(dtype) && values.size() <= kBlockSize, "{} {}", dtype_name(dtype),
                values.size());
  const auto* const bytes = reinterpret_cast<const uint8_t*>(block);
  const uint32_t scale = bytes[0];
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t code = bytes[1 + i];
    if (scale == kNotFiniteScale) {
      values[i] = std::bit_cast<float>(kQuietNan);
    } else if (dtype == DType::kI8) {
      const float magnitude = magnitude_of<kSignedMantissaBits>(code & 0x7F, scale);
      values[i] = (code & 0x80) != 0 ? -magnitude : magnitude;
    } else {
      const float root = magnitude_of<kSquareMantissaBits>(code, scale);
      values[i] = root * root;
    }
  }
}

void encode_values(DType dtype, std::span<const float> values, std::byte* blocks) {
  std::array<uint16_t, kBlockSize> half;
  half.fill(0x8000);
  for (; !values.empty(); blocks += kCodeBlockBytes) {
    const std::span<const float> now = values.first(std::min(values.size(), kBlockSize));
    encode_block(dtype, now, half, blocks);
    values = values.subspan(now.size());
  }
}

void read_codes(DType dtype, const std::byte* blocks, int64_t first, std::span<float> values) {
  std::array<float, kBlockSize> block;
  while (!values.empty()) {
    const auto skipped = static_cast<size_t>(first % kCodeBlock);
    const size_t count = std::min(values.size(), kBlockSize - skipped);
    decode_block(dtype, blocks + first / kCodeBlock * kCodeBlockBytes, block);
    std::copy_n(block.begin() + skipped, count, values.begin());
    values = values.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

void write_codes(DType dtype, std::byte* blocks, int64_t first, std::span<const float> values) {
  std::array<float, kBlockSize> block;
  while (!values.empty()) {
    const auto skipped = static_cast<size_t>(first % kCodeBlock);
    const size_t count = std::min(values.size(), kBlockSize - skipped);
    std::byte* const to = blocks + first / kCodeBlock * kCodeBlockBytes;
    decode_block(dtype, to, block);
    std::copy_n(values.begin(), count, block.begin() + skipped);
    encode_values(dtype, block, to);
    values = values.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

}  // namespace tessera
