// The forms in which weights that do not change are kept in fewer bits, and how they lie in memory.
//
//   kInt8       w_nk ~ s_n q_nk              q in -127 ... 127, s_n = max_k |w_nk| / 127, float32
//   kNf4        w_nk ~ a_nb c(q_nk)          b = k / 64, a_nb = the largest |w_nk| of the block, float32; c
//   the
//                                            16 values of NormalFloat, 4 bits (Dettmers et al., QLoRA, 2023)
//   kNf4Double  the same, a_nb ~ m + t p_nb  p in -127 ... 127; m, t float32 of up to 256 blocks of a row:
//   the
//                                            mean, and the largest distance from it / 127
//
// A matrix [N, K] begins at a multiple of 64 bytes with the codes of its rows (4-bit codes in pairs, the
// first in the upper half, each row from a new byte on); from the next multiple of 64 on follow s, a or p of
// all rows; from the next again, for kNf4Double, m and t of all rows. Nothing crosses a row, so that rows are
// quantised one by one. (bitsandbytes cuts blocks, and blocks of 256 scales, across rows, and codes scales by
// a dynamic tree.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "base/memory.h"
#include "tensor/quantization.h"

namespace tessera {

inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kNf4ScaleBlock = 256;  // blocks
inline constexpr float kNf4Values[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

// A matrix [N, K] in one of them; `Byte` is std::byte or const std::byte.
template <typename Byte>
struct QuantizedMatrix {
  Quantization kind = Quantization::kNone;
  Byte* data = nullptr;
  int64_t N = 0;
  int64_t K = 0;

  bool is_4_bit() const { return kind != Quantization::kInt8; }
  int64_t row_code_bytes() const { return is_4_bit() ? divide_up(K, 2) : K; }
  int64_t row_blocks() const { return divide_up(K, kNf4Block); }
  int64_t row_scale_bytes() const {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    if (kind == Quantization::kInt8) return kFloat;
    return kind == Quantization::kNf4 ? row_blocks() * kFloat : row_blocks();
  }
  int64_t row_offset_bytes() const {
    constexpr auto kPair = static_cast<int64_t>(2 * sizeof(float));
    return kind == Quantization::kNf4Double ? divide_up(row_blocks(), kNf4ScaleBlock) * kPair : 0;
  }

  Byte* codes(int64_t row) const { return data + row * row_code_bytes(); }
  Byte* scales(int64_t row) const {
    return data + round_up(N * row_code_bytes(), kCacheLineBytes) + row * row_scale_bytes();
  }
  Byte* offsets(int64_t row) const {
    return data + round_up(N * row_code_bytes(), kCacheLineBytes) +
           round_up(N * row_scale_bytes(), kCacheLineBytes) + row * row_offset_bytes();
  }
  int64_t size_bytes() const {
    return round_up(N * row_code_bytes(), kCacheLineBytes) +
           round_up(N * row_scale_bytes(), kCacheLineBytes) +
           round_up(N * row_offset_bytes(), kCacheLineBytes);
  }
};
using ConstQuantizedMatrix = QuantizedMatrix<const std::byte>;

}  // namespace tessera
