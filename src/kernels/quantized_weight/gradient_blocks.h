// Gradients in the 8-bit or 4-bit form in which they cross the network: blocks of 128 codes with one scale.
// The quantization error of each value is added to the next gradient sent (error feedback).
//
//   c_i = x_i + e_i       x float32, e bf16: the value to transmit
//   c_i ~ s_b q_i         q_i in -m ... m, s_b = max |c_i| / m of block b = i / 128, float32; m = 127 or 7
//   e_i = c_i - s_b q_i   rounded to bf16: sent along with the next x_i
//
// so a value moves by at most s_b / 2, and over many steps the sum received equals the sum sent up to one
// e_i; q_i is c_i m / max |c_i|, rounded to nearest, ties to even. The scales of all blocks come first. In 4
// bits, byte j of a block of n values has q_j in its lower half and q_(j + h) in its upper half, h = n / 2
// rounded up. A block whose largest value is below 2^-100 is all zeros with e_i = c_i; a block with a value
// that is not finite is all NaN with e_i = 0. Every instruction set gives the same bits. Compare: Wang et
// al., ZeRO++, 2023 (qgZ); Seide et al., 1-bit stochastic gradient descent, 2014 (error feedback).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "base/float_types.h"

namespace tessera {

enum class GradientCode { kInt8, kInt4 };

inline constexpr int64_t kGradientBlock = 128;

// Bytes of the scales and codes of `count` values.
inline int64_t gradient_blocks_bytes(GradientCode code, int64_t count) {
  return divide_up(count, kGradientBlock) * static_cast<int64_t>(sizeof(float)) +
         (code == GradientCode::kInt8 ? count : divide_up(count, int64_t{2}));
}

// Runs on the calling thread. `blocks` is aligned for float32. new_feedback may be `feedback` itself, or
// null: then the error is not kept. Nothing else overlaps.
void encode_gradient_blocks(GradientCode code, const float* x, const bf16* feedback, int64_t count,
                            std::byte* blocks, bf16* new_feedback);
// y = values [begin, begin + size) of the `count` in `blocks`; `begin` is a multiple of kGradientBlock.
void decode_gradient_blocks(GradientCode code, const std::byte* blocks, int64_t count, int64_t begin,
                            int64_t size, float* y);

}  // namespace tessera
