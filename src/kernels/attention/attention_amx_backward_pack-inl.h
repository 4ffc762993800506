// Packs rows of q, k, v and do into the operands of backward attention. Part of attention_amx_backward.cc.
#pragma once

#include "kernels/attention/attention_amx-inl.h"
// attention_amx-inl.h must come before any other header with intrinsics.
#include <algorithm>

#include "kernels/attention/attention_amx_layout.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {  // the compiler inlines what only one place calls

constexpr int64_t kGranule = kAttentionGranule;

// Calls body(first column, columns) for the pieces of 32 columns of a head.
template <typename Body>
void for_each_piece(int64_t head_dim, const Body& body) {
  for (int64_t i = 0; i < head_dim; i += kTileDepth) body(i, std::min(kTileDepth, head_dim - i));
}

// Packs operands of m [rows, E] whose contraction is the head: [granule][depth tile][2 tiles of 16 rows],
// each by pack(from, stride, rows, columns, tile).
template <typename Pack>
void pack_along_head(const bf16* from, int64_t stride, int64_t rows, int64_t head_dim, bf16* to,
                     const Pack& pack) {
  static_assert(kTileRows == kTileColumns);
  for (int64_t row = 0; row < rows; row += kGranule) {
    for_each_piece(head_dim, [&](int64_t i, int64_t columns) {
      for (int64_t half = row; half < row + kGranule; half += kTileRows, to += kTileElements) {
        pack(from + half * stride + i, stride, std::clamp<int64_t>(rows - half, 0, kTileRows), columns, to);
      }
    });
  }
}

// Packs operands whose contraction is the rows: [piece of 32 columns][granule][2 tiles of 16 columns],
// `granules` per piece.
template <typename Pack>
void pack_along_rows(const bf16* from, int64_t stride, int64_t rows, int64_t head_dim, int64_t granules,
                     bf16* to, const Pack& pack) {
  for_each_piece(head_dim, [&](int64_t i, int64_t columns) {
    for (int64_t row = 0; row < rows; row += kGranule) {
      bf16* pair = to + (i / kTileDepth * granules + row / kGranule) * TileUnit::kPair;
      for (int64_t half = 0; half < kTileDepth; half += kTileColumns, pair += kTileElements) {
        pack(from + row * stride + i + half, stride, std::min(kGranule, rows - row),
             std::clamp<int64_t>(columns - half, 0, kTileColumns), pair);
      }
    }
  });
}

// A operands of m.
void pack_rows(const bf16* from, int64_t stride, int64_t rows, int64_t head_dim, bf16* to) {
  pack_along_head(from, stride, rows, head_dim, to, [](auto... part) { copy_tile(part...); });
}
// B operands of m^T and of m, from rows first copied together: rows of qkv map to the same few cache sets,
// and each is read many times. `granules` of m per piece; `rows_32` holds 32 rows.
void pack_both(const bf16* from, int64_t stride, int64_t rows, int64_t head_dim, int64_t granules,
               bf16* rows_32, bf16* transposed, bf16* interleaved) {
  const int64_t pieces = round_up(head_dim, kTileDepth) / kTileDepth;
  for (int64_t row = 0; row < rows; row += kGranule) {
    for_each_piece(head_dim, [&](int64_t i, int64_t columns) {
      copy_padded(from + row * stride + i, stride, std::min(kGranule, rows - row), columns, kGranule,
                  rows_32 + i * kGranule);
    });
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const bf16* m = rows_32 + piece * kGranule * kTileDepth;
      bf16* pair = interleaved + (piece * granules + row / kGranule) * TileUnit::kPair;
      for (int64_t half = 0; half < 2; ++half, transposed += kTileElements, pair += kTileElements) {
        pair_tile(m + half * kTileElements, kTileDepth, transposed);
        interleave_tile(m + half * kTileColumns, kTileDepth, pair);
      }
    }
  }
}
// A operands of m^T.
void pack_row_transposed(const bf16* from, int64_t stride, int64_t rows, int64_t head_dim, int64_t granules,
                         bf16* to) {
  pack_along_rows(from, stride, rows, head_dim, granules, to, [](auto... part) { transpose_tile(part...); });
}

}  // namespace
}  // namespace tessera::amx
TESSERA_AMX_END
