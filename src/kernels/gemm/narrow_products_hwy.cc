#include <algorithm>
#include <type_traits>

#include "kernels/activation_type.h"
#include "kernels/gemm/narrow_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/narrow_products_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

using NarrowVector = hn::Vec<FloatTag>;

constexpr int64_t kBlock = 4;              // rows of an operand in registers: 16 sums, 8 vectors of operands
constexpr int64_t kTokensPerTask = 32;     // of forward and backward_input
constexpr int64_t kColumnsPerPass = 4096;  // of forward: 256 KiB of x and w of some 10 rows stay in L2
constexpr int64_t kTokensPerPass = 64;     // of backward_weight, whose tile of x in float32 stays in L1
constexpr int64_t kTileVectors = 4;        // columns of that tile
constexpr int64_t kColumnsPerTask = 256;

// The sums of products of kTokens rows of x with kRows rows of w over `count` columns, added to `sums`.
template <int64_t kTokens, int64_t kRows, class A>
HWY_INLINE void add_dots(const A* x, const A* w, int64_t K, int64_t count, float* sums, int64_t stride) {
  const FloatTag d;
  NarrowVector sum[kTokens][kRows];
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t j = 0; j < kRows; ++j) sum[i][j] = hn::Zero(d);
  }
  int64_t done = 0;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (std::is_same_v<A, bf16>) {
    constexpr int64_t kPairs = 32;  // of each operand
    for (; done + kPairs <= count; done += kPairs) {
      __m512i rows[kRows];
      for (int64_t j = 0; j < kRows; ++j) rows[j] = _mm512_loadu_si512(w + j * K + done);
      for (int64_t i = 0; i < kTokens; ++i) {
        const __m512i token = _mm512_loadu_si512(x + i * K + done);
        for (int64_t j = 0; j < kRows; ++j) {
          asm("vdpbf16ps %2, %1, %0" : "+v"(sum[i][j].raw) : "v"(token), "v"(rows[j]));
        }
      }
    }
  }
#endif
  for_each_vector(d, count - done, [&](auto access, int64_t k) HWY_ATTR {
    NarrowVector row[kRows];
    for (int64_t j = 0; j < kRows; ++j) row[j] = access.load(d, w + j * K + done + k);
    for (int64_t i = 0; i < kTokens; ++i) {
      const NarrowVector token = access.load(d, x + i * K + done + k);
      for (int64_t j = 0; j < kRows; ++j) sum[i][j] = hn::MulAdd(token, row[j], sum[i][j]);
    }
  });
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t j = 0; j < kRows; ++j) sums[i * stride + j] += hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
  }
}

template <int64_t kTokens, class A>
HWY_INLINE void add_dots_of_tokens(const A* x, const A* w, int64_t R, int64_t K, int64_t count, float* sums) {
  int64_t r = 0;
  for (; r + kBlock <= R; r += kBlock) add_dots<kTokens, kBlock>(x, w + r * K, K, count, sums + r, R);
  for (; r < R; ++r) add_dots<kTokens, 1>(x, w + r * K, K, count, sums + r, R);
}

template <class A, class Y>
HWY_INLINE void forward_tokens(const A* x, const A* w, Y* y, int64_t T, int64_t R, int64_t K) {
  float sums[kTokensPerTask * kMaxNarrowRows] = {};
  for (int64_t k = 0; k < K; k += kColumnsPerPass) {
    const int64_t count = std::min(kColumnsPerPass, K - k);
    int64_t t = 0;
    for (; t + kBlock <= T; t += kBlock)
      add_dots_of_tokens<kBlock>(x + t * K + k, w + k, R, K, count, sums + t * R);
    for (; t < T; ++t) add_dots_of_tokens<1>(x + t * K + k, w + k, R, K, count, sums + t * R);
  }
  for (int64_t i = 0; i < T * R; ++i) y[i] = from_float<Y>(sums[i]);
}

void narrow_forward_hwy(ConstTensorView x_TK, ConstTensorView w_RK, TensorView y_TR, ThreadPool& pool) {
  const int64_t K = x_TK.dim(1), R = w_RK.dim(0);
  with_activation_type(x_TK.dtype(), [&]<typename A>(A) {
    with_activation_type(y_TR.dtype(), [&]<typename Y>(Y) {
      pool.parallel_blocks(x_TK.dim(0), kTokensPerTask, [&](int64_t begin, int64_t end) HWY_ATTR {
        forward_tokens(x_TK.as<A>() + begin * K, w_RK.as<A>(), y_TR.as<Y>() + begin * R, end - begin, R, K);
      });
    });
  });
}

// One vector of columns, or two, of kTokens rows of dx.
template <int64_t kTokens, int64_t kVectors, class Access, class A, class X>
HWY_INLINE void expand_vectors(Access access, const float* dy, const A* w, X* dx, int64_t R, int64_t K,
                               bool adds) {
  const FloatTag d;
  NarrowVector sum[kTokens][kVectors];
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t v = 0; v < kVectors; ++v) {
      sum[i][v] = adds ? access.load(d, dx + i * K + v * lanes(d)) : hn::Zero(d);
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    NarrowVector row[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) row[v] = access.load(d, w + r * K + v * lanes(d));
    for (int64_t i = 0; i < kTokens; ++i) {
      const NarrowVector factor = hn::Set(d, dy[i * R + r]);
      for (int64_t v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
    }
  }
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t v = 0; v < kVectors; ++v) access.store(d, sum[i][v], dx + i * K + v * lanes(d));
  }
}

template <int64_t kTokens, class A, class X>
HWY_INLINE void expand_tokens(const float* dy, const A* w, X* dx, int64_t R, int64_t K, bool adds) {
  constexpr int64_t kVectors = 4;
  const FloatTag d;
  int64_t k = 0;
  for (; k + kVectors * lanes(d) <= K; k += kVectors * lanes(d)) {
    expand_vectors<kTokens, kVectors>(WholeVector(), dy, w + k, dx + k, R, K, adds);
  }
  for_each_vector(d, K - k, [&](auto access, int64_t i) HWY_ATTR {
    expand_vectors<kTokens, 1>(access, dy, w + k + i, dx + k + i, R, K, adds);
  });
}

template <class A>
HWY_INLINE void widen(const A* from, int64_t count, float* to) {
  const FloatTag d;
  for_each_vector(
      d, count, [&](auto access, int64_t i) HWY_ATTR { access.store(d, access.load(d, from + i), to + i); });
}

void narrow_backward_input_hwy(ConstTensorView dy_TR, ConstTensorView w_RK, TensorView dx_TK, Update update,
                               ThreadPool& pool) {
  const int64_t R = dy_TR.dim(1), K = w_RK.dim(1);
  const bool adds = update == Update::kAdd;
  with_activation_type(dy_TR.dtype(), [&]<typename A>(A) {
    with_activation_type(dx_TK.dtype(), [&]<typename X>(X) {
      pool.parallel_blocks(dy_TR.dim(0), kTokensPerTask, [&](int64_t begin, int64_t end) HWY_ATTR {
        float dy[kTokensPerTask * kMaxNarrowRows];
        widen(dy_TR.as<A>() + begin * R, (end - begin) * R, dy);
        const A* w = w_RK.as<A>();
        X* dx = dx_TK.as<X>() + begin * K;
        int64_t t = 0;
        for (; t + kBlock <= end - begin; t += kBlock)
          expand_tokens<kBlock>(dy + t * R, w, dx + t * K, R, K, adds);
        for (; t < end - begin; ++t) expand_tokens<1>(dy + t * R, w, dx + t * K, R, K, adds);
      });
    });
  });
}

// kRows rows of a tile of dw += those columns of dy (stride R) times the tile of x.
template <int64_t kRows>
HWY_INLINE void add_gradient(const float* dy, const float* x, int64_t T, int64_t R, float* dw, int64_t K) {
  const FloatTag d;
  const int64_t width = kTileVectors * lanes(d);
  NarrowVector sum[kRows][kTileVectors];
  for (int64_t j = 0; j < kRows; ++j) {
    for (int64_t v = 0; v < kTileVectors; ++v) sum[j][v] = hn::LoadU(d, dw + j * K + v * lanes(d));
  }
  for (int64_t t = 0; t < T; ++t) {
    NarrowVector row[kTileVectors];
    for (int64_t v = 0; v < kTileVectors; ++v) row[v] = hn::LoadU(d, x + t * width + v * lanes(d));
    for (int64_t j = 0; j < kRows; ++j) {
      const NarrowVector factor = hn::Set(d, dy[t * R + j]);
      for (int64_t v = 0; v < kTileVectors; ++v) sum[j][v] = hn::MulAdd(factor, row[v], sum[j][v]);
    }
  }
  for (int64_t j = 0; j < kRows; ++j) {
    for (int64_t v = 0; v < kTileVectors; ++v) hn::StoreU(sum[j][v], d, dw + j * K + v * lanes(d));
  }
}

// dw, whose rows are `width` apart, += dy^T x for one tile: `count` columns, the others of the tile are zero.
template <class A>
HWY_INLINE void add_tile(const float* dy, const A* x, int64_t T, int64_t R, int64_t K, int64_t count,
                         float* dw) {
  const FloatTag d;
  const int64_t width = kTileVectors * lanes(d);
  float tile[kTokensPerPass * kTileVectors * hn::MaxLanes(FloatTag())];
  for (int64_t t = 0; t < T; ++t) {
    widen(x + t * K, count, tile + t * width);
    std::fill(tile + t * width + count, tile + (t + 1) * width, 0.0f);
  }
  int64_t r = 0;
  for (; r + kBlock <= R; r += kBlock) add_gradient<kBlock>(dy + r, tile, T, R, dw + r * width, width);
  for (; r < R; ++r) add_gradient<1>(dy + r, tile, T, R, dw + r * width, width);
}

void narrow_backward_weight_hwy(ConstTensorView dy_TR, ConstTensorView x_TK, TensorView dw_RK, Update update,
                                ThreadPool& pool) {
  const int64_t T = dy_TR.dim(0), R = dy_TR.dim(1), K = x_TK.dim(1);
  with_activation_type(dy_TR.dtype(), [&]<typename A>(A) {
    pool.parallel_blocks(K, kColumnsPerTask, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      const int64_t width = kTileVectors * lanes(d);
      float sums[kMaxNarrowRows * kColumnsPerTask];  // tile by tile
      float dy[kTokensPerPass * kMaxNarrowRows];
      std::fill_n(sums, R * kColumnsPerTask, 0.0f);
      for (int64_t t = 0; t < T; t += kTokensPerPass) {
        const int64_t tokens = std::min(kTokensPerPass, T - t);
        widen(dy_TR.as<A>() + t * R, tokens * R, dy);
        for (int64_t k = begin; k < end; k += width) {
          add_tile(dy, x_TK.as<A>() + t * K + k, tokens, R, K, std::min(width, end - k),
                   sums + (k - begin) * R);
        }
      }
      float* dw = dw_RK.as<float>();
      for (int64_t k = begin; k < end; ++k) {
        const float* tile = sums + (k - begin) / width * width * R + (k - begin) % width;
        for (int64_t r = 0; r < R; ++r) {
          float& to = dw[r * K + k];
          to = tile[r * width] + (update == Update::kAdd ? to : 0.0f);
        }
      }
    });
  });
}

const NarrowKernels kNarrowKernels = {narrow_forward_hwy, narrow_backward_input_hwy,
                                      narrow_backward_weight_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<NarrowKernels>> narrow_hwy() { return TESSERA_HWY_TABLE(kNarrowKernels); }

}  // namespace tessera
#endif
