#include <algorithm>
#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/layernorm/layernorm_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layernorm/layernorm_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements a thread takes at a time; the row count follows from the width.
constexpr int64_t kLayerNormElements = 16 * 1024;
// Columns a thread takes at a time when it sums dw and db over all rows.
constexpr int64_t kLayerNormColumns = 128;

int64_t rows_of_layernorm_task(int64_t width) {
  return std::max<int64_t>(1, kLayerNormElements / std::max<int64_t>(1, width));
}

struct RowStatistics {
  float mean, rstd;
};

// Mean and deviation in two passes over the row, which stays in cache.
template <typename A>
HWY_NOINLINE RowStatistics row_statistics(const A* x, int64_t D, float eps) {
  const FloatTag d;
  auto sums = hn::Zero(d);
  for_each_vector(d, D,
                  [&](auto access, int64_t i) HWY_ATTR { sums = hn::Add(sums, access.load(d, x + i)); });
  const float mean = sum_of_lanes(d, sums) / static_cast<float>(D);
  auto squares = hn::Zero(d);
  const auto center = hn::Set(d, mean);
  int64_t i = 0;
  const int64_t N = lanes(d);
  for (; i + N <= D; i += N) {
    const auto difference = hn::Sub(load_floats(d, x + i), center);
    squares = hn::MulAdd(difference, difference, squares);
  }
  float sum = sum_of_lanes(d, squares);
  for (; i < D; ++i) {
    const float difference = to_float(x[i]) - mean;
    sum += difference * difference;
  }
  return {mean, 1 / std::sqrt(sum / static_cast<float>(D) + eps)};
}

template <typename A>
HWY_NOINLINE void normalize_row(const A* x, const A* w, const A* b, const RowStatistics& stats, int64_t D,
                                A* y) {
  const FloatTag d;
  const auto mean = hn::Set(d, stats.mean), rstd = hn::Set(d, stats.rstd);
  for_each_vector(d, D, [&](auto access, int64_t i) HWY_ATTR {
    const auto n = hn::Mul(hn::Sub(access.load(d, x + i), mean), rstd);
    const auto bias = b == nullptr ? hn::Zero(d) : access.load(d, b + i);
    access.store(d, hn::MulAdd(n, access.load(d, w + i), bias), y + i);
  });
}

template <bool kAdd, typename A>
HWY_NOINLINE void backward_row(const A* dy, const A* x, const A* w, const RowStatistics& stats, int64_t D,
                               A* dx) {
  const FloatTag d;
  const auto mean = hn::Set(d, stats.mean), rstd = hn::Set(d, stats.rstd);
  auto sum_g = hn::Zero(d), sum_gn = hn::Zero(d);
  for_each_vector(d, D, [&](auto access, int64_t i) HWY_ATTR {
    const auto g = hn::Mul(access.load(d, dy + i), access.load(d, w + i));  // 0 beyond the row
    const auto n = hn::Mul(hn::Sub(access.load(d, x + i), mean), rstd);
    sum_g = hn::Add(sum_g, g);
    sum_gn = hn::MulAdd(g, n, sum_gn);
  });
  const auto mean_g = hn::Set(d, sum_of_lanes(d, sum_g) / static_cast<float>(D));
  const auto mean_gn = hn::Set(d, sum_of_lanes(d, sum_gn) / static_cast<float>(D));
  for_each_vector(d, D, [&](auto access, int64_t i) HWY_ATTR {
    const auto g = hn::Mul(access.load(d, dy + i), access.load(d, w + i));
    const auto n = hn::Mul(hn::Sub(access.load(d, x + i), mean), rstd);
    auto result = hn::Mul(rstd, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g)));
    if constexpr (kAdd) result = hn::Add(result, access.load(d, dx + i));
    access.store(d, result, dx + i);
  });
}

// dw and db of columns [begin, end), over the rows in order.
template <typename A>
HWY_NOINLINE void sum_columns(const A* dy, const A* x, const float* stats, int64_t R, int64_t D,
                              int64_t begin, int64_t end, Update update, float* dw, float* db) {
  const FloatTag d;
  float of_w[kLayerNormColumns] = {}, of_b[kLayerNormColumns] = {};
  const int64_t count = end - begin;
  if (update == Update::kAdd) {
    if (dw != nullptr) std::copy_n(dw + begin, count, of_w);
    if (db != nullptr) std::copy_n(db + begin, count, of_b);
  }
  for (int64_t r = 0; r < R; ++r) {
    const auto mean = hn::Set(d, stats[2 * r]), rstd = hn::Set(d, stats[2 * r + 1]);
    const int64_t row = r * D + begin;
    for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
      const auto gradient = access.load(d, dy + row + i);
      const auto n = hn::Mul(hn::Sub(access.load(d, x + row + i), mean), rstd);
      access.store(d, hn::MulAdd(gradient, n, access.load(d, of_w + i)), of_w + i);
      access.store(d, hn::Add(gradient, access.load(d, of_b + i)), of_b + i);
    });
  }
  if (dw != nullptr) std::copy_n(of_w, count, dw + begin);
  if (db != nullptr) std::copy_n(of_b, count, db + begin);
}

void layernorm_forward_hwy(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps,
                           TensorView y_RD, TensorView stats_R2, ThreadPool& pool) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    const A *const x = x_RD.as<A>(), *const w = w_D.as<A>();
    const A* const b = b_D.empty() ? nullptr : b_D.as<A>();
    A* const y = y_RD.as<A>();
    float* const stats = stats_R2.as<float>();
    pool.parallel_blocks(R, rows_of_layernorm_task(D), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const RowStatistics of_row = row_statistics(x + r * D, D, eps);
        normalize_row(x + r * D, w, b, of_row, D, y + r * D);
        stats[2 * r] = of_row.mean;
        stats[2 * r + 1] = of_row.rstd;
      }
    });
  });
}

void layernorm_backward_hwy(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                            ConstTensorView stats_R2, TensorView dx_RD, Update dx_update, TensorView dw_D,
                            TensorView db_D, Update dw_update, ThreadPool& pool) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  const float* const stats = stats_R2.as<float>();
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    const A *const dy = dy_RD.as<A>(), *const x = x_RD.as<A>(), *const w = w_D.as<A>();
    A* const dx = dx_RD.as<A>();
    if (!dw_D.empty() || !db_D.empty()) {
      float* const dw = dw_D.empty() ? nullptr : dw_D.as<float>();
      float* const db = db_D.empty() ? nullptr : db_D.as<float>();
      pool.parallel_blocks(D, kLayerNormColumns, [&](int64_t begin, int64_t end) {
        sum_columns(dy, x, stats, R, D, begin, end, dw_update, dw, db);
      });
    }
    pool.parallel_blocks(R, rows_of_layernorm_task(D), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const RowStatistics of_row = {stats[2 * r], stats[2 * r + 1]};
        const auto row = dx_update == Update::kAdd ? backward_row<true, A> : backward_row<false, A>;
        row(dy + r * D, x + r * D, w, of_row, D, dx + r * D);
      }
    });
  });
}

const LayerNormKernels kKernels = {.forward = layernorm_forward_hwy, .backward = layernorm_backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<LayerNormKernels>> layernorm_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
