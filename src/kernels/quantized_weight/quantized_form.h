// The quantized forms of frozen weights and their layout in memory.
//
//   kInt8       w_nk ~ s_n q_nk          q in -127 ... 127, s_n = max_k |w_nk| / 127, float32
//   kNf4        w_nk ~ a_b c(q_nk)       b counts blocks of 64 elements of the flattened matrix, across
//                                        rows; a_b the largest |w_nk| of the block, float32; c the 16
//                                        values of NormalFloat, 4 bits (Dettmers et al., QLoRA, 2023)
//   kNf4Double  the same with            p 8 bits, d the dynamic map of 256 values (Dettmers, 8-bit
//               a_b ~ m + t_g d(p_b)     approximations, 2016), g = b / 256; m the mean of all a, t_g the
//                                        largest |a_b - m| of the group, float32
//
// These are bitsandbytes' forms. Its kernels for AVX-512 read the scale of another block where K is a
// multiple of 16 but not of 64; here each block uses its own scale, as bitsandbytes does on other processors
// and on cards.
//
// A matrix [N, K] begins at a multiple of 64 bytes with the codes of its rows (4-bit codes in pairs, the
// first in the upper half, each row from a new byte on); from the next multiple of 64 on follow s, a or p;
// from the next again, for kNf4Double, m and the t. If several matrices are laid one after another in it,
// each has its own blocks and m.
#pragma once

#include <algorithm>
#include <array>
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
  // The rows with which the second and the third of the matrices in it begin; 0 = there is none.
  std::array<int64_t, 2> later_parts = {};

  // One of the matrices, and where its blocks and its m and t begin among those of all.
  struct Part {
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t first_block = 0;
    int64_t first_step = 0;
  };
  // The part that holds a row; for row N, the part past the end.
  Part part_of(int64_t row) const {
    Part part;
    for (const int64_t begin : {later_parts[0], later_parts[1], N}) {
      if (begin == 0) continue;
      part.rows = begin - part.first_row;
      if (row < begin) return part;
      part.first_block += num_blocks(part);
      part.first_step += num_steps(part);
      part.first_row = begin;
    }
    part.rows = 0;
    return part;
  }
  int64_t num_blocks(const Part& part) const { return divide_up(part.rows * K, kNf4Block); }
  // m, then t of every group of blocks.
  int64_t num_steps(const Part& part) const { return 1 + divide_up(num_blocks(part), kNf4ScaleBlock); }

  bool is_4_bit() const { return kind != Quantization::kInt8; }
  int64_t row_code_bytes() const { return is_4_bit() ? divide_up(K, 2) : K; }
  Byte* codes(int64_t row) const { return data + row * row_code_bytes(); }
  // s of all rows, a or p of all blocks.
  Byte* scales() const { return data + round_up(N * row_code_bytes(), kCacheLineBytes); }
  Byte* steps() const { return scales() + round_up(scale_bytes(), kCacheLineBytes); }
  int64_t size_bytes() const {
    const int64_t step_bytes = kind == Quantization::kNf4Double ? part_of(N).first_step * kFloatBytes : 0;
    return round_up(N * row_code_bytes(), kCacheLineBytes) + round_up(scale_bytes(), kCacheLineBytes) +
           round_up(step_bytes, kCacheLineBytes);
  }

 private:
  static constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  int64_t scale_bytes() const {
    if (kind == Quantization::kInt8) return N * kFloatBytes;
    const int64_t blocks = part_of(N).first_block;
    return kind == Quantization::kNf4 ? blocks * kFloatBytes : blocks;
  }
};
using ConstQuantizedMatrix = QuantizedMatrix<const std::byte>;

}  // namespace tessera
