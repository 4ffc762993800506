// Values in the 8-bit form in which they cross the network: blocks of 128 codes with one scale.
//
//   x_i ~ s_b q_i      q_i in -127 ... 127, s_b = max |x_i| / 127 of block b = i / 128, float32
//
// so a value moves by at most s_b / 2 before it is rounded back to bf16; q_i is x_i 127 / max |x_i|, rounded
// to nearest, ties to even. The scales of all blocks come first. A block whose largest value is below 2^-100
// is all zeros; one with a value that is not finite is all NaN. Every instruction set gives the same bits.
// Compare: Wang et al., ZeRO++, 2023, which sends weights in blocks as well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "base/float_types.h"

namespace tessera {

inline constexpr int64_t kInt8Block = 128;

// Bytes of the scales and codes of `count` values.
inline int64_t int8_blocks_bytes(int64_t count) {
  return divide_up(count, kInt8Block) * static_cast<int64_t>(sizeof(float)) + count;
}

// On the calling thread. `blocks` is aligned for float32; nothing overlaps.
void encode_int8_blocks(const bf16* x, int64_t count, std::byte* blocks);
void decode_int8_blocks(const std::byte* blocks, int64_t count, bf16* y);

}  // namespace tessera
