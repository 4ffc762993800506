// Shared by the forward and backward pass of AMX attention: products of tiles, and exp.
//
// Vector work is interleaved with products in small groups (`weave`). In a loop of four TDPBF16PS, their
// loads from L1 and four rows of exp(32 scores), a TDPBF16PS took 5.55 ns without the rows and 5.9 to 6.2 ns
// with one row each; the same rows 16 at a time after 16 TDPBF16PS cost 9.1 ns. In a full pass more of that
// work remains visible; one unproven hypothesis is that a vector port is shared with the tile unit.
#pragma once

#include "kernels/amx/tiles.h"
// tiles.h must come before any other header with intrinsics.
#include "base/float_types.h"
#include "kernels/amx/pack-inl.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

// Tile loads do not tell GCC that they read memory: place between vector stores and tile loads of the same
// data.
inline void stores_before_tile_loads() { asm volatile("" : : : "memory"); }

// No vector work.
struct NoWeave {
  void operator()() const {}
};

enum class Start { kZero, kLoad };

// Products of 32 x 32 elements. Operands are pairs of tiles adjacent across the contraction, stored pair
// after pair along it; a result is four C tiles [2][2].
//
//         b[0]   b[1]          tile registers
//   a[0]   C0     C1           A: 4     B: 6, 7
//   a[1]   C2     C3           A: 5
//
// A result stays in its registers until the next product begins: its stores then fall between the first loads
// and products of that one, and the tile unit need not wait for them. b is streamed past L1, leaving L1 to a
// and c.
class TileUnit {
 public:
  static constexpr int64_t kPair = 2 * kTileElements;

  // c = or += a b over `depth` >= 1 pairs.
  __attribute__((always_inline)) void multiply(Start start, const bf16* a, const bf16* b, int64_t depth,
                                               float* c) {
    multiply(start, a, b, depth, c, NoWeave());
  }
  template <typename Weave>
  __attribute__((always_inline)) void multiply(Start start, const bf16* a, const bf16* b, int64_t depth,
                                               float* c, Weave&& weave) {
    if (pending_ == nullptr) {
      begin<false>(start, a, b, c);
    } else {
      begin<true>(start, a, b, c);
    }
    weave();
    for (int64_t k = 1; k < depth; ++k) {
      a += kPair;
      b += kPair;
      _tile_stream_loadd(6, b, kTileRowBytes);
      _tile_loadd(4, a, kTileRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, b + kTileElements, kTileRowBytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTileElements, kTileRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      weave();
    }
    pending_ = c;
  }

  // After this, or once the next product has begun, the last result is in memory.
  void flush() {
    if (pending_ == nullptr) return;
    _tile_stored(0, pending_, kTileRowBytes);
    _tile_stored(1, pending_ + kTileFloats, kTileRowBytes);
    _tile_stored(2, pending_ + 2 * kTileFloats, kTileRowBytes);
    _tile_stored(3, pending_ + 3 * kTileFloats, kTileRowBytes);
    pending_ = nullptr;
  }

 private:
  template <bool kPending>
  __attribute__((always_inline)) void begin(Start start, const bf16* a, const bf16* b, const float* c) {
    const bool load = start == Start::kLoad;
    _tile_stream_loadd(6, b, kTileRowBytes);
    _tile_loadd(4, a, kTileRowBytes);
    if constexpr (kPending) _tile_stored(0, pending_, kTileRowBytes);
    if (load) {
      _tile_loadd(0, c, kTileRowBytes);
    } else {
      _tile_zero(0);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + kTileElements, kTileRowBytes);
    if constexpr (kPending) _tile_stored(1, pending_ + kTileFloats, kTileRowBytes);
    if (load) {
      _tile_loadd(1, c + kTileFloats, kTileRowBytes);
    } else {
      _tile_zero(1);
    }
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileElements, kTileRowBytes);
    if constexpr (kPending) _tile_stored(2, pending_ + 2 * kTileFloats, kTileRowBytes);
    if (load) {
      _tile_loadd(2, c + 2 * kTileFloats, kTileRowBytes);
    } else {
      _tile_zero(2);
    }
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kPending) _tile_stored(3, pending_ + 3 * kTileFloats, kTileRowBytes);
    if (load) {
      _tile_loadd(3, c + 3 * kTileFloats, kTileRowBytes);
    } else {
      _tile_zero(3);
    }
    _tile_dpbf16ps(3, 5, 7);
  }

  float* pending_ = nullptr;
};

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

// For every 128 bits: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
inline __m512d add_halves(__m512 a, __m512 b) {
  return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
}

// In 128 bits each: first + second of a, third + fourth of a, then the same for b.
inline __m512 add_lanes(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

// Sums of the 16 rows of m [16, 16].
inline __m512 sums_of_rows(const float* m) {
  __m512 lanes[4];  // lanes[i], 128 bits each: sums over four columns of rows 4 i ... 4 i + 3
  for (__m512& four : lanes) {
    const __m512d first = add_halves(_mm512_load_ps(m), _mm512_load_ps(m + kTileColumns));
    const __m512d second =
        add_halves(_mm512_load_ps(m + 2 * kTileColumns), _mm512_load_ps(m + 3 * kTileColumns));
    four = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
    m += 4 * kTileColumns;
  }
  return add_lanes(add_lanes(lanes[0], lanes[1]), add_lanes(lanes[2], lanes[3]));
}

// Packs `low` as elements 0 to 15 and `high` as 16 to 31, rounded to nearest even.
inline __m512i to_bf16_pair(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Stores one row [count] of 32 floats at a time, times `factor`, from two adjacent C tiles.
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
