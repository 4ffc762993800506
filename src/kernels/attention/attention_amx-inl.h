// What the forward and the backward pass of attention on AMX share: products of tiles that leave room for
// vector work, and exp.
//
// A TDPBF16PS keeps the tile unit busy for 16 cycles and costs the front end one instruction, so softmax runs
// beside the products where both stand close together in the program: every product takes a `weave` that it
// calls once per four TDPBF16PS (64 cycles), with work that is independent of the product.
#pragma once

#include "kernels/amx/tiles.h"
// tiles.h stands before any other header with intrinsics.
#include "base/float_types.h"
#include "kernels/amx/pack-inl.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

inline constexpr int64_t kTileFloats = kTileRows * kTileColumns;

// Tile loads do not tell GCC that they read memory: stands between vector stores and tile loads of the same.
inline void stores_before_tile_loads() { asm volatile("" : : : "memory"); }

// A row or a column of tiles: tile k of the contraction at data + k * depth_stride (elements), its neighbour
// across the contraction `pair` elements after it.
struct TilePanel {
  const bf16* data;
  int64_t depth_stride;
  int64_t pair;
};

// Four C tiles, 32 x 32.
struct TileBlock {
  float* data;
  int64_t row_pair;     // floats from a tile to the one of the next 16 rows
  int64_t column_pair;  // and of the next 16 columns
};

// No vector work.
struct NoWeave {
  void operator()() const {}
};

//          b.data   b.data + pair          tile registers
//  a.data    C0        C1          A: 4     B: 6, 7
//  + pair    C2        C3          A: 5
//
// c += a b over `depth` tiles of the contraction; kOverwrite starts from zero.
enum class Start { kZero, kLoad };

template <typename Weave>
__attribute__((always_inline)) inline void multiply_tiles(Start start, TilePanel a, TilePanel b,
                                                          int64_t depth, TileBlock c, Weave&& weave) {
  constexpr int64_t kCStride = kTileRowBytes, kABStride = kTileRowBytes;
  if (start == Start::kLoad) {
    _tile_loadd(0, c.data, kCStride);
    _tile_loadd(1, c.data + c.column_pair, kCStride);
    _tile_loadd(2, c.data + c.row_pair, kCStride);
    _tile_loadd(3, c.data + c.row_pair + c.column_pair, kCStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; ++k) {
    _tile_loadd(6, b.data, kABStride);
    _tile_loadd(4, a.data, kABStride);
    _tile_loadd(7, b.data + b.pair, kABStride);
    _tile_loadd(5, a.data + a.pair, kABStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a.data += a.depth_stride;
    b.data += b.depth_stride;
    weave();
  }
  _tile_stored(0, c.data, kCStride);
  _tile_stored(1, c.data + c.column_pair, kCStride);
  _tile_stored(2, c.data + c.row_pair, kCStride);
  _tile_stored(3, c.data + c.row_pair + c.column_pair, kCStride);
}

// 2^x, relative error below 2^-18: minimax polynomial of degree 4 on the fraction. Saturates at 0 and
// infinity; -infinity gives 0, NaN stays NaN.
inline __m512 exp2_floats(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0.013534167781472206f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.052011460065841675f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2414427548646927f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6930038332939148f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0000026226043701f));
  return _mm512_scalef_ps(p, x);  // p 2^floor(x)
}

// Elements 0 to 15 from `low`, 16 to 31 from `high`, rounded to nearest even.
inline __m512i to_bf16_pair(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// One row [count] of 32 floats at a time, times `factor`, from two C tiles that are side by side.
inline void store_bf16_row(const float* left, const float* right, __m512 factor, int64_t count, bf16* to) {
  const __m512i row =
      to_bf16_pair(_mm512_mul_ps(_mm512_load_ps(left), factor), _mm512_mul_ps(_mm512_load_ps(right), factor));
  if (count >= kTileDepth) {
    _mm512_storeu_si512(to, row);
  } else {
    _mm512_mask_storeu_epi16(to, static_cast<__mmask32>((uint64_t{1} << count) - 1), row);
  }
}

}  // namespace tessera::amx
TESSERA_AMX_END
