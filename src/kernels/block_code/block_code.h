// Values in 8 bits: blocks of 32 codes with one scale. A code is a small floating-point number of 4 exponent
// bits; the scale, stored first, is a float32 exponent field, so that values are exact in float32. The bounds
// of a block move with its largest value:
//
//   I8  sign, 4 exponent and 3 mantissa bits: a value of either sign          (a first moment)
//   U8  4 exponent and 4 mantissa bits of the square root of a value >= 0     (a second moment)
//
//   magnitude = (1 + mantissa / 2^M) 2^(exponent + scale - 15 - 127); code 0 is zero
//
// So a value keeps 4 significant bits, as long as it is at least 2^-14 of the largest of its block (U8:
// 2^-28). Below that I8 becomes 0 and U8 its smallest value, because a second moment of 0 would make an
// update arbitrarily large. If a value of a block is not finite, all of them are read as NaN (scale 255).
//
// Encoding what was decoded changes no value, in the same blocks or parts of them: state goes through float32
// between memory, checkpoints and ranks without loss. Compare: Dettmers et al., 8-bit optimizers via
// block-wise quantization, 2022, whose codes are a table.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace tessera {

inline constexpr int64_t kCodeBlock = 32;
inline constexpr int64_t kCodeBlockBytes = 1 + kCodeBlock;

// Mantissa bits of the magnitudes in I8 and U8 codes.
inline constexpr int kSignedMantissaBits = 3;
inline constexpr int kSquareMantissaBits = 4;
// The smallest scales: a magnitude, and the square of a U8 magnitude, is zero or a normal number.
inline constexpr uint32_t kMinSignedScale = 16;
inline constexpr uint32_t kMinSquareScale = 82;
inline constexpr uint32_t kNotFiniteScale = 255;

inline bool is_block_code(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }

// The scale of a block from the bits of its largest magnitude: the largest code is enough for it, however it
// is rounded. NaN with any bits gives kNotFiniteScale.
template <int kMantissaBits>
uint32_t block_scale(uint32_t max_bits) {
  constexpr uint32_t kInfinity = 0x7F800000;
  const uint32_t scale = (std::min(max_bits, kInfinity) + (1u << (23 - kMantissaBits)) - 1) >> 23;
  return std::max(scale, kMantissaBits == kSignedMantissaBits ? kMinSignedScale : kMinSquareScale);
}

// The code of a magnitude >= 0 with these bits. `noise` < 2^(23 - kMantissaBits) is added before what does
// not fit is cut off: uniform noise rounds stochastically, half of the range to the nearest.
template <int kMantissaBits>
uint32_t magnitude_code(uint32_t bits, uint32_t scale, uint32_t noise) {
  const auto code = static_cast<int32_t>((bits + noise) >> (23 - kMantissaBits)) -
                    static_cast<int32_t>((scale - 15) << kMantissaBits);
  return static_cast<uint32_t>(std::max(code, 0));
}

template <int kMantissaBits>
float magnitude_of(uint32_t code, uint32_t scale) {
  return code == 0 ? 0.0f : std::bit_cast<float>((code << (23 - kMantissaBits)) + ((scale - 15) << 23));
}

// Encodes one block; values past the end of the last block count as 0. Noise has 16 bits per element.
void encode_block(DType dtype, std::span<const float> values, std::span<const uint16_t> noise,
                  std::byte* block);
void decode_block(DType dtype, const std::byte* block, std::span<float> values);

// Encodes values, rounded to the nearest, from the beginning of a block on.
void encode_values(DType dtype, std::span<const float> values, std::byte* blocks);
// Element `first` of the blocks and those after it.
void read_codes(DType dtype, const std::byte* blocks, int64_t first, std::span<float> values);
// Leaves the other elements of the first and last block as they are, except those that have become too
// small.
void write_codes(DType dtype, std::byte* blocks, int64_t first, std::span<const float> values);

}  // namespace tessera
