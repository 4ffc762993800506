#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/divide_up.h"
#include "base/memory.h"
#include "kernels/activation_type.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rmsnorm/rmsnorm_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements a thread takes at a time in forward; the row count follows from the width.
constexpr int64_t kBlockElements = 16 * 1024;

// Columns a thread takes at a time when it sums partial dw: a page of float32.
constexpr int64_t kReduceColumns = 1024;

int64_t forward_block_rows(int64_t width) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, width));
}

float rstd_of(float sum_of_squares, int64_t D, float eps) {
  return 1 / std::sqrt(sum_of_squares / static_cast<float>(D) + eps);
}

// Independent sums kept side by side: a single chain would wait for the latency of its additions.
constexpr size_t kSums = 4;

template <class V>
float total(const V (&sums)[kSums]) {
  const FloatTag d;
  return sum_of_lanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

// w, to which `offset` is added.
template <typename A>
struct RowWeight {
  const A* w;
  float offset;
};

// y = w x rstd with x from cache.
template <typename A>
HWY_INLINE void scale_row(const A* x, RowWeight<A> w, float rstd, int64_t D, A* y) {
  const FloatTag d;
  const auto scale = hn::Set(d, rstd), offset = hn::Set(d, w.offset);
  for_each_group<4>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, A>(d, y + i);
    auto value = access.load(d, x + i);
    const auto weight = access.load(d, w.w + i);
    for (size_t k = 0; k < access.kVectors; ++k) {
      value.v[k] = hn::Mul(hn::Mul(value.v[k], scale), hn::Add(weight.v[k], offset));
    }
    access.store(d, value, y + i);
  });
}

// y = w x rstd. Returns rstd.
template <typename A>
HWY_NOINLINE float forward_row(const A* x, RowWeight<A> w, int64_t D, float eps, A* y) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  hn::Vec<FloatTag> sums[kSums] = {zero, zero, zero, zero};
  for_each_group<kSums>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, A>(d, x + i);
    const auto value = access.load(d, x + i);
    for (size_t k = 0; k < access.kVectors; ++k) sums[k] = hn::MulAdd(value.v[k], value.v[k], sums[k]);
  });
  const float rstd = rstd_of(total(sums), D, eps);
  scale_row(x, w, rstd, D, y);
  return rstd;
}

// x += y, then as forward_row.
template <typename A>
HWY_NOINLINE float add_forward_row(A* x, const A* y, RowWeight<A> w, int64_t D, float eps, A* norm) {
  const FloatTag d;
  const auto zero = hn::Zero(d);
  hn::Vec<FloatTag> sums[kSums] = {zero, zero, zero, zero};
  for_each_group<kSums>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, A>(d, x + i);
    prefetch_ahead<access.kVectors, A>(d, y + i);
    auto value = access.load(d, x + i);
    const auto other = access.load(d, y + i);
    for (size_t k = 0; k < access.kVectors; ++k) value.v[k] = hn::Add(value.v[k], other.v[k]);
    access.store(d, value, x + i);
    for (size_t k = 0; k < access.kVectors; ++k) sums[k] = hn::MulAdd(value.v[k], value.v[k], sums[k]);
  });
  const float rstd = rstd_of(total(sums), D, eps);
  scale_row<A>(x, w, rstd, D, norm);
  return rstd;
}

template <typename A>
struct BackwardRow {
  const A* dy;
  const A* x;
  A* dx;
  float rstd;
};

// mean(dy w x)
template <typename A>
HWY_INLINE float mean_product(const BackwardRow<A>& row, RowWeight<A> w, int64_t D) {
  const FloatTag d;
  const auto zero = hn::Zero(d), offset = hn::Set(d, w.offset);
  hn::Vec<FloatTag> sums[kSums] = {zero, zero, zero, zero};
  for_each_group<kSums>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, A>(d, row.dy + i);
    prefetch_ahead<access.kVectors, A>(d, row.x + i);
    prefetch_ahead<access.kVectors, A>(d, row.dx + i);
    const auto gradient = access.load(d, row.dy + i), value = access.load(d, row.x + i);
    const auto weight = access.load(d, w.w + i);
    for (size_t k = 0; k < access.kVectors; ++k) {
      const auto scaled = hn::Mul(gradient.v[k], hn::Add(weight.v[k], offset));
      sums[k] = hn::MulAdd(scaled, value.v[k], sums[k]);
    }
  });
  return total(sums) / static_cast<float>(D);
}

// dx = or += rstd (g - x rstd^2 mean(g x)) with g = dy w; dw += dy x rstd. Several rows at a time share each
// pass of w and dw through the registers; dw receives their terms in order.
template <size_t kRows, bool kAdd, typename A>
HWY_NOINLINE void backward_rows(const BackwardRow<A>* rows, RowWeight<A> w, int64_t D, float* dw) {
  const FloatTag d;
  const auto offset = hn::Set(d, w.offset);
  hn::Vec<FloatTag> scale[kRows], projection[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    const float rstd = rows[r].rstd;
    scale[r] = hn::Set(d, rstd);
    projection[r] = hn::Set(d, rstd * rstd * rstd * mean_product(rows[r], w, D));
  }
  for_each_group<2>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    auto weight = access.load(d, w.w + i);
    for (size_t k = 0; k < access.kVectors; ++k) weight.v[k] = hn::Add(weight.v[k], offset);
    auto sums = access.template load_as<A>(d, dw + i);
    for (size_t r = 0; r < kRows; ++r) {
      const auto gradient = access.load(d, rows[r].dy + i), value = access.load(d, rows[r].x + i);
      auto result = value;
      if constexpr (kAdd) result = access.load(d, rows[r].dx + i);
      for (size_t k = 0; k < access.kVectors; ++k) {
        const auto scaled = hn::Mul(gradient.v[k], scale[r]);
        sums.v[k] = hn::MulAdd(scaled, value.v[k], sums.v[k]);
        const auto projected = hn::Mul(value.v[k], projection[r]);
        const auto change = hn::MulSub(scaled, weight.v[k], projected);
        result.v[k] = kAdd ? hn::Add(result.v[k], change) : change;
      }
      access.store(d, result, rows[r].dx + i);
    }
    access.template store_as<A>(d, sums, dw + i);
  });
}

// Rows that share a pass over dw: with four, x, dy and dx of 4096 elements are 96 KiB, well inside L2.
constexpr size_t kBackwardRows = 4;

// Collects rows and processes kBackwardRows at a time; finish() handles the rest.
template <typename A>
class BackwardBatches {
 public:
  BackwardBatches(RowWeight<A> w, int64_t D, Update update, float* dw)
      : w_(w), D_(D), update_(update), dw_(dw) {}

  void add(const BackwardRow<A>& row) {
    rows_[count_++] = row;
    if (count_ == kBackwardRows) run<kBackwardRows>(0);
  }
  void finish() {
    for (size_t r = 0; r < count_; ++r) run<1>(r);
  }

 private:
  template <size_t kRows>
  void run(size_t first) {
    if (update_ == Update::kAdd) {
      backward_rows<kRows, true>(rows_ + first, w_, D_, dw_);
    } else {
      backward_rows<kRows, false>(rows_ + first, w_, D_, dw_);
    }
    if (kRows == kBackwardRows) count_ = 0;
  }

  RowWeight<A> w_;
  int64_t D_;
  Update update_;
  float* dw_;
  BackwardRow<A> rows_[kBackwardRows];
  size_t count_ = 0;
};

// One row of float32 sums per block of rows, summed over the blocks in order.
class PartialWeightGradients {
 public:
  PartialWeightGradients(std::span<std::byte> scratch, int64_t num_rows, int64_t width)
      : data_(reinterpret_cast<float*>(scratch.data())),
        num_blocks_(divide_up(num_rows, kRmsNormBackwardBlock)),
        width_(width),
        stride_(round_up(width * static_cast<int64_t>(sizeof(float)), kCacheLineBytes) /
                static_cast<int64_t>(sizeof(float))) {}

  // The sums of the block that starts at `row`, zeroed.
  float* start_block(int64_t row) const {
    float* sums = data_ + row / kRmsNormBackwardBlock * stride_;
    std::memset(sums, 0, static_cast<size_t>(width_) * sizeof(float));
    return sums;
  }

  // dw = or += the sum over all blocks.
  void write_to(float* dw, Update update, ThreadPool& pool) const {
    pool.parallel_blocks(width_, kReduceColumns, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      for_each_vector(d, end - begin, [&](auto access, int64_t i) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (int64_t block = 0; block < num_blocks_; ++block) {
          sum = hn::Add(sum, access.load(d, data_ + block * stride_ + begin + i));
        }
        if (update == Update::kAdd) sum = hn::Add(access.load(d, dw + begin + i), sum);
        access.store(d, sum, dw + begin + i);
      });
    });
  }

 private:
  float* data_;
  int64_t num_blocks_;
  int64_t width_;
  int64_t stride_;
};

void forward_hwy(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD, TensorView rstd_R,
                 ThreadPool& pool) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  float* const rstd = rstd_R.as<float>();
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    const A* const x = x_RD.as<A>();
    const RowWeight<A> w = {w_D.view.as<A>(), w_D.offset};
    A* const y = y_RD.as<A>();
    pool.parallel_blocks(R, forward_block_rows(D), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) rstd[r] = forward_row(x + r * D, w, D, eps, y + r * D);
    });
  });
}

void add_forward_hwy(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                     TensorView norm_TD, TensorView rstd_T, ThreadPool& pool) {
  const int64_t T = x_TD.dim(0), D = x_TD.dim(1);
  float* const rstd = rstd_T.as<float>();
  with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
    A *const x = x_TD.as<A>(), *const norm = norm_TD.as<A>();
    const A* const y = y_TD.as<A>();
    const RowWeight<A> w = {w_D.view.as<A>(), w_D.offset};
    pool.parallel_blocks(T, forward_block_rows(D), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        rstd[t] = add_forward_row(x + t * D, y + t * D, w, D, eps, norm + t * D);
      }
    });
  });
}

void backward_hwy(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D, ConstTensorView rstd_R,
                  TensorView dx_RD, Update dx_update, TensorView dw_D, Update dw_update,
                  std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  const float* const rstd = rstd_R.as<float>();
  const PartialWeightGradients partial(scratch, R, D);
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    const A *const dy = dy_RD.as<A>(), *const x = x_RD.as<A>();
    const RowWeight<A> w = {w_D.view.as<A>(), w_D.offset};
    A* const dx = dx_RD.as<A>();
    pool.parallel_blocks(R, kRmsNormBackwardBlock, [&](int64_t begin, int64_t end) {
      BackwardBatches<A> rows(w, D, dx_update, partial.start_block(begin));
      for (int64_t r = begin; r < end; ++r) rows.add({dy + r * D, x + r * D, dx + r * D, rstd[r]});
      rows.finish();
    });
  });
  partial.write_to(dw_D.as<float>(), dw_update, pool);
}

void head_forward_hwy(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                      int64_t head_end, const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd,
                      ThreadPool& pool) {
  const int64_t E = shape.head_dim, Q = shape.qkv_width(), width = w_E.view.dim(0);
  const int64_t num_normed = (head_end - head_begin) * E / width;
  float* const rstds = rstd.as<float>();
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A* const qkv = qkv_TQ.as<A>();
    const RowWeight<A> w = {w_E.view.as<A>(), w_E.offset};
    A* const out = y_TQ.as<A>();
    pool.parallel_blocks(qkv_TQ.dim(0), forward_block_rows(Q), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A* x = qkv + t * Q;
        A* y = out + t * Q;
        if (y != x) {
          std::copy(x, x + head_begin * E, y);
          std::copy(x + head_end * E, x + Q, y + head_end * E);
        }
        for (int64_t i = 0; i < num_normed; ++i) {
          const int64_t at = head_begin * E + i * width;
          rstds[t * num_normed + i] = forward_row(x + at, w, width, eps, y + at);
        }
      }
    });
  });
}

void head_backward_hwy(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                       int64_t head_begin, int64_t head_end, const NormWeight& w_E, ConstTensorView rstd,
                       TensorView dw_E, Update dw_update, std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t T = qkv_TQ.dim(0), E = shape.head_dim, Q = shape.qkv_width(), width = w_E.view.dim(0);
  const int64_t num_normed = (head_end - head_begin) * E / width;
  const float* const rstds = rstd.as<float>();
  const PartialWeightGradients partial(scratch, T, width);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    const A* const qkv = qkv_TQ.as<A>();
    const RowWeight<A> w = {w_E.view.as<A>(), w_E.offset};
    A* const dqkv = dqkv_TQ.as<A>();
    pool.parallel_blocks(T, kRmsNormBackwardBlock, [&](int64_t begin, int64_t end) {
      BackwardBatches<A> rows(w, width, Update::kOverwrite, partial.start_block(begin));
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < num_normed; ++i) {
          const int64_t at = t * Q + head_begin * E + i * width;
          rows.add({dqkv + at, qkv + at, dqkv + at, rstds[t * num_normed + i]});
        }
      }
      rows.finish();
    });
  });
  partial.write_to(dw_E.as<float>(), dw_update, pool);
}

const RmsNormKernels kKernels = {.forward = forward_hwy,
                                 .add_forward = add_forward_hwy,
                                 .backward = backward_hwy,
                                 .head_forward = head_forward_hwy,
                                 .head_backward = head_backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<RmsNormKernels>> rmsnorm_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
