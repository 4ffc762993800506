// Packs row-major bf16 matrices into the operand tiles of tiles.h: 1 KiB each, contiguous, 64-byte aligned.
//
//   part of the matrix m            tile                                            contraction over
//   copy_tile        16 x 32        A of m           A[i][k] = m[i][k]                     columns of m
//   transpose_tile   32 x 16        A of m^T         A[i][k] = m[k][i]                     rows of m
//   interleave_tile  32 x 16        B of m           B[p][j] = (m[2p][j], m[2p+1][j])      rows of m
//   pair_tile        16 x 32        B of m^T         B[p][j] = (m[j][2p], m[j][2p+1])      columns of m
//
// `from` is the first element of the part, `stride` the distance between rows in elements; no alignment is
// needed. The forms with `rows` and `columns` read only that many and set the rest of the tile to zero. The
// steps (4 per tile, independent of one another) let a caller spread a tile's packing between other
// instructions: the vector units are idle while TDPBF16PS runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "kernels/amx/tiles.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

inline constexpr int64_t kTileElements = kTileBytes / static_cast<int64_t>(sizeof(bf16));
inline constexpr int64_t kPackSteps = 4;

// Four rows of the tile: 4 * step ... 4 * step + 3.
inline void copy_tile_step(const bf16* from, int64_t stride, int64_t step, bf16* tile) {
  for (int64_t i = 4 * step; i < 4 * step + 4; ++i) {
    _mm512_store_si512(tile + i * kTileDepth, _mm512_loadu_si512(from + i * stride));
  }
}

// Four rows of the tile, from eight rows of the matrix.
inline void interleave_tile_step(const bf16* from, int64_t stride, int64_t step, bf16* tile) {
  // Interleaves the words of the first row with those of the second, which follows it in the register.
  const __m512i side_by_side =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t p = 4 * step; p < 4 * step + 4; ++p) {
    const bf16* row = from + 2 * p * stride;
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + stride));
    // A masked broadcast from memory can use either vector port; an insertion only the shuffle port.
    const __m512i both = _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(first), 0xF0, second);
    _mm512_store_si512(tile + p * kTileDepth, _mm512_permutexvar_epi16(side_by_side, both));
  }
}

// Four rows of the tile, from 16 bytes (starting at byte 16 * step) of all 16 rows of the matrix: tile row p
// has the 4 bytes at 4 p of every row, that is, two bf16 or four int8 elements. The stride is in bytes.
inline void pair_tile_step(const std::byte* from, int64_t stride, int64_t step, std::byte* tile) {
  const std::byte* column = from + 16 * step;
  const auto quarter = [&](int64_t row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(column + row * stride));
  };
  // Lane l of rows[i] is row 4 l + i, so that only 4 x 4 transpositions within lanes remain.
  __m512i rows[4];
  for (int64_t i = 0; i < 4; ++i) {
    __m512i row = _mm512_castsi128_si512(quarter(i));
    row = _mm512_mask_broadcast_i32x4(row, 0x00F0, quarter(4 + i));
    row = _mm512_mask_broadcast_i32x4(row, 0x0F00, quarter(8 + i));
    rows[i] = _mm512_mask_broadcast_i32x4(row, 0xF000, quarter(12 + i));
  }
  const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  std::byte* to = tile + 4 * step * kTileRowBytes;
  _mm512_store_si512(to, _mm512_unpacklo_epi64(low01, low23));
  _mm512_store_si512(to + kTileRowBytes, _mm512_unpackhi_epi64(low01, low23));
  _mm512_store_si512(to + 2 * kTileRowBytes, _mm512_unpacklo_epi64(high01, high23));
  _mm512_store_si512(to + 3 * kTileRowBytes, _mm512_unpackhi_epi64(high01, high23));
}

inline void copy_tile(const bf16* from, int64_t stride, bf16* tile) {
  for (int64_t step = 0; step < kPackSteps; ++step) copy_tile_step(from, stride, step, tile);
}

inline void interleave_tile(const bf16* from, int64_t stride, bf16* tile) {
  for (int64_t step = 0; step < kPackSteps; ++step) interleave_tile_step(from, stride, step, tile);
}

inline void pair_tile(const std::byte* from, int64_t stride, std::byte* tile) {
  for (int64_t step = 0; step < kPackSteps; ++step) pair_tile_step(from, stride, step, tile);
}
inline void pair_tile(const bf16* from, int64_t stride, bf16* tile) {
  pair_tile(reinterpret_cast<const std::byte*>(from), stride * static_cast<int64_t>(sizeof(bf16)),
            reinterpret_cast<std::byte*>(tile));
}

// A[i][2p], A[i][2p+1] = m[2p][i], m[2p+1][i]: the interleaved tile with pairs and columns swapped.
inline void transpose_tile(const bf16* from, int64_t stride, bf16* tile) {
  alignas(64) bf16 interleaved[kTileElements];
  interleave_tile(from, stride, interleaved);
  pair_tile(interleaved, kTileDepth, tile);
}

// Copies the first `rows` x `columns` (at most 32) of the part and pads with zeros up to `all_rows` x 32.
inline void copy_padded(const bf16* from, int64_t stride, int64_t rows, int64_t columns, int64_t all_rows,
                        bf16* to) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
  for (int64_t i = 0; i < rows; ++i) {
    _mm512_store_si512(to + i * kTileDepth, _mm512_maskz_loadu_epi16(mask, from + i * stride));
  }
  for (int64_t i = rows; i < all_rows; ++i) _mm512_store_si512(to + i * kTileDepth, _mm512_setzero_si512());
}

inline void copy_tile(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* tile) {
  copy_padded(from, stride, rows, columns, kTileRows, tile);
}

inline void transpose_tile(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* tile) {
  if (rows == kTileDepth && columns == kTileRows) return transpose_tile(from, stride, tile);
  alignas(64) bf16 padded[kTileDepth * kTileDepth];
  copy_padded(from, stride, rows, columns, kTileDepth, padded);
  transpose_tile(padded, kTileDepth, tile);
}

inline void interleave_tile(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* tile) {
  if (rows == kTileDepth && columns == kTileColumns) return interleave_tile(from, stride, tile);
  alignas(64) bf16 padded[kTileDepth * kTileDepth];
  copy_padded(from, stride, rows, columns, kTileDepth, padded);
  interleave_tile(padded, kTileDepth, tile);
}

inline void pair_tile(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* tile) {
  if (rows == kTileColumns && columns == kTileDepth) return pair_tile(from, stride, tile);
  alignas(64) bf16 padded[kTileElements];
  copy_padded(from, stride, rows, columns, kTileColumns, padded);
  pair_tile(padded, kTileDepth, tile);
}

}  // namespace tessera::amx
TESSERA_AMX_END
