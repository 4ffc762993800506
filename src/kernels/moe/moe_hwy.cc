#include <algorithm>

#include "base/divide_up.h"
#include "kernels/activation_type.h"
#include "kernels/moe/moe_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/moe_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements a thread takes at a time, of the rows of its experts together.
constexpr int64_t kMoeBlockElements = 32 * 1024;

int64_t moe_block_rows(int64_t elements_per_row) {
  return std::max<int64_t>(1, kMoeBlockElements / std::max<int64_t>(1, elements_per_row));
}

void combine_hwy(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK, TensorView y_TD,
                 Update update, ThreadPool& pool) {
  const int64_t D = y_TD.dim(1), K = rows.top_k;
  const float* const weights = w_TK.empty() ? nullptr : w_TK.as<float>();
  with_activation_type(y_TD.dtype(), [&]<typename A>(A) {
    const A* const from = y_RD.as<A>();
    A* const to = y_TD.as<A>();
    pool.parallel_blocks(y_TD.dim(0), moe_block_rows(D * K), [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      for (int64_t t = begin; t < end; ++t) {
        A* const y = to + t * D;
        for_each_group<4>(d, D, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
          auto sum = access.load(d, y + i);
          if (update == Update::kOverwrite) {
            for (size_t k = 0; k < access.kVectors; ++k) sum.v[k] = hn::Zero(d);
          }
          for (int64_t j = t * K; j < (t + 1) * K; ++j) {
            const auto value = access.load(d, from + rows.rows[static_cast<size_t>(j)] * D + i);
            const auto w = hn::Set(d, weights == nullptr ? 1.0f : weights[j]);
            for (size_t k = 0; k < access.kVectors; ++k) sum.v[k] = hn::MulAdd(w, value.v[k], sum.v[k]);
          }
          access.store(d, sum, y + i);
        });
      }
    });
  });
}

// Returns the product of two rows, then scales both.
template <typename A>
HWY_NOINLINE float weigh_row(A* a, A* b, float w, int64_t F) {
  const FloatTag d;
  constexpr size_t kMoeSums = 4;
  hn::Vec<FloatTag> sums[kMoeSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  const auto scale = hn::Set(d, w);
  for_each_group<kMoeSums>(d, F, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    auto of_a = access.load(d, a + i);
    auto of_b = access.load(d, b + i);
    for (size_t k = 0; k < access.kVectors; ++k) {
      sums[k] = hn::MulAdd(of_a.v[k], of_b.v[k], sums[k]);
      of_a.v[k] = hn::Mul(of_a.v[k], scale);
      of_b.v[k] = hn::Mul(of_b.v[k], scale);
    }
    access.store(d, of_a, a + i);
    access.store(d, of_b, b + i);
  });
  return sum_of_lanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

void weigh_hwy(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
               TensorView dw_TK, ThreadPool& pool) {
  const int64_t F = a_RF.dim(1);
  const float* const weights = w_TK.as<float>();
  float* const dw = dw_TK.as<float>();
  with_activation_type(a_RF.dtype(), [&]<typename A>(A) {
    A* const a = a_RF.as<A>();
    A* const b = b_RF.as<A>();
    pool.parallel_blocks(rows.num_rows(), moe_block_rows(2 * F), [&](int64_t begin, int64_t end) HWY_ATTR {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t choice = rows.choices[static_cast<size_t>(r)];
        dw[choice] = weigh_row(a + r * F, b + r * F, weights[choice], F);
      }
    });
  });
}

// Calls body(r, e) for rows [begin, end) and their experts, in order.
template <typename Body>
void for_each_row_of(const ExpertRows& rows, int64_t begin, int64_t end, const Body& body) {
  const auto after = std::upper_bound(rows.starts.begin(), rows.starts.end(), begin);
  for (int64_t e = after - rows.starts.begin() - 1, r = begin; r < end; ++e) {
    for (; r < std::min(end, rows.end(e)); ++r) body(r, e);
  }
}

template <typename A>
HWY_NOINLINE void add_bias_row(const A* b, int64_t N, A* y) {
  const FloatTag d;
  for_each_group<4>(d, N, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    auto sum = access.load(d, y + i);
    const auto bias = access.load(d, b + i);
    for (size_t k = 0; k < access.kVectors; ++k) sum.v[k] = hn::Add(sum.v[k], bias.v[k]);
    access.store(d, sum, y + i);
  });
}

void add_bias_hwy(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN, ThreadPool& pool) {
  const int64_t N = y_RN.dim(1);
  with_activation_type(y_RN.dtype(), [&]<typename A>(A) {
    const A* const b = b_EN.as<A>();
    A* const y = y_RN.as<A>();
    pool.parallel_blocks(rows.num_rows(), moe_block_rows(N), [&](int64_t begin, int64_t end) {
      for_each_row_of(rows, begin, end, [&](int64_t r, int64_t e) { add_bias_row(b + e * N, N, y + r * N); });
    });
  });
}

template <typename A>
HWY_NOINLINE float product_of_rows(const A* a, const A* b, int64_t N) {
  const FloatTag d;
  hn::Vec<FloatTag> sums[4];
  for (auto& sum : sums) sum = hn::Zero(d);
  for_each_group<4>(d, N, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto of_a = access.load(d, a + i), of_b = access.load(d, b + i);
    for (size_t k = 0; k < access.kVectors; ++k) sums[k] = hn::MulAdd(of_a.v[k], of_b.v[k], sums[k]);
  });
  return sum_of_lanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

// Columns a thread takes at a time of the gradient of an expert's bias.
constexpr int64_t kBiasColumns = 512;

// db of columns [begin, end) of an expert, over its rows in order.
template <typename A>
HWY_NOINLINE void bias_columns(const ExpertRows& rows, int64_t expert, const A* g, const float* weights,
                               int64_t N, int64_t begin, int64_t end, Update update, float* db) {
  const FloatTag d;
  for_each_vector(d, end - begin, [&](auto access, int64_t i) HWY_ATTR {
    float* const to = db + expert * N + begin + i;
    auto sum = update == Update::kAdd ? access.load(d, to) : hn::Zero(d);
    for (int64_t r = rows.begin(expert); r < rows.end(expert); ++r) {
      const float w = weights == nullptr ? 1.0f : weights[rows.choices[static_cast<size_t>(r)]];
      sum = hn::MulAdd(hn::Set(d, w), access.load(d, g + r * N + begin + i), sum);
    }
    access.store(d, sum, to);
  });
}

void bias_backward_hwy(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                       ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update,
                       ThreadPool& pool) {
  const int64_t N = g_RN.dim(1);
  const float* const weights = w_TK.empty() ? nullptr : w_TK.as<float>();
  with_activation_type(g_RN.dtype(), [&]<typename A>(A) {
    const A *const g = g_RN.as<A>(), *const b = b_EN.as<A>();
    if (!dw_TK.empty()) {
      float* const dw = dw_TK.as<float>();
      pool.parallel_blocks(rows.num_rows(), moe_block_rows(N), [&](int64_t begin, int64_t end) {
        for_each_row_of(rows, begin, end, [&](int64_t r, int64_t e) {
          dw[rows.choices[static_cast<size_t>(r)]] += product_of_rows(g + r * N, b + e * N, N);
        });
      });
    }
    if (db_EN.empty()) return;
    const int64_t num_blocks = divide_up(N, kBiasColumns);
    pool.parallel_for(rows.num_experts() * num_blocks, [&](int64_t index) {
      const int64_t begin = index % num_blocks * kBiasColumns;
      bias_columns(rows, index / num_blocks, g, weights, N, begin, std::min(N, begin + kBiasColumns), update,
                   db_EN.as<float>());
    });
  });
}

const MoeKernels kKernels = {
    .combine = combine_hwy, .weigh = weigh_hwy, .add_bias = add_bias_hwy, .bias_backward = bias_backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<MoeKernels>> moe_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
