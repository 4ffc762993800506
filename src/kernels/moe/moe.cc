#include "kernels/moe/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/activation_type.h"
#include "kernels/moe/moe_impl.h"

namespace tessera {
namespace {

// Tokens a thread takes at a time.
constexpr int64_t kRouteTokens = 32;

void check_routing(ConstTensorView of_logits, const ExpertRows& rows, ConstTensorView of_choices) {
  TESSERA_CHECK(of_logits.shape() == (Shape{rows.num_tokens(), rows.num_experts()}) &&
                    of_choices.shape() == (Shape{rows.num_tokens(), rows.top_k}) &&
                    of_choices.dtype() == DType::kF32 && rows.num_experts() <= kMaxExperts,
                "logits {}, weights {} {}, {} tokens choose {} of {} experts", of_logits.shape().to_string(),
                dtype_name(of_choices.dtype()), of_choices.shape().to_string(), rows.num_tokens(), rows.top_k,
                rows.num_experts());
}

void check_rows(ConstTensorView of_rows, const ExpertRows& rows) {
  TESSERA_CHECK(of_rows.shape().rank() == 2 && of_rows.dim(0) == rows.num_rows(), "{} {}, {} rows of experts",
                dtype_name(of_rows.dtype()), of_rows.shape().to_string(), rows.num_rows());
}

// logits -> probabilities
void softmax_in_place(std::span<float> row) {
  const float max = *std::ranges::max_element(row);
  float sum = 0;
  for (float& value : row) {
    value = std::exp(value - max);
    sum += value;
  }
  for (float& value : row) value /= sum;
}

// Source: pytorch, aten/src/ATen/native/TopKImpl.h. The same algorithms of the standard library leave equal
// values in the same order.
void choose_top(std::span<const float> p, std::span<int32_t> chosen) {
  using Element = std::pair<float, int32_t>;
  std::array<Element, kMaxExperts> queue;
  for (size_t e = 0; e < p.size(); ++e) queue[e] = {p[e], static_cast<int32_t>(e)};
  const auto is_before = [](const Element& a, const Element& b) {
    return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
  };
  auto* const begin = queue.data();
  auto* const end = begin + p.size();
  const auto k = std::ssize(chosen);
  if (k * 64 <= std::ssize(p)) {
    std::partial_sort(begin, begin + k, end, is_before);
  } else {
    std::nth_element(begin, begin + k - 1, end, is_before);
    std::sort(begin, begin + k - 1, is_before);
  }
  for (size_t j = 0; j < chosen.size(); ++j) chosen[j] = queue[j].second;
}

void add_load(ConstTensorView p_TE, const ExpertRows& rows, RouterLoad& load) {
  const int64_t T = p_TE.dim(0), E = p_TE.dim(1);
  TESSERA_CHECK(std::ssize(load.count) == E, "load of {} experts, {} logits", load.count.size(), E);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t e = 0; e < E; ++e) {
      load.probability[static_cast<size_t>(e)] += static_cast<double>(p_TE.as<float>()[t * E + e]);
    }
  }
  for (int64_t e = 0; e < E; ++e) load.count[static_cast<size_t>(e)] += rows.end(e) - rows.begin(e);
  load.num_tokens += T;
}

}  // namespace

const DispatchTable<MoeKernels>& moe_table() {
  static const DispatchTable<MoeKernels> table("moe", concat(moe_hwy(), moe_ref()));
  return table;
}

void route(TensorView p_TE, ExpertWeights form, TensorView w_TK, ExpertRows& rows, RouterLoad* load,
           ThreadPool& pool) {
  check_routing(p_TE, rows, w_TK);
  const int64_t E = rows.num_experts(), K = rows.top_k;
  pool.parallel_blocks(rows.num_tokens(), kRouteTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::span<float> p(p_TE.as<float>() + t * E, static_cast<size_t>(E));
      const std::span<float> w(w_TK.as<float>() + t * K, static_cast<size_t>(K));
      const std::span<int32_t> chosen(rows.experts.data() + t * K, static_cast<size_t>(K));
      if (form != ExpertWeights::kSoftmaxOfChosen) softmax_in_place(p);
      choose_top(p, chosen);
      float sum = 0;
      for (size_t j = 0; j < w.size(); ++j) {
        w[j] = p[static_cast<size_t>(chosen[j])];
        sum += w[j];
      }
      if (form == ExpertWeights::kSoftmaxOfChosen) {
        softmax_in_place(w);
        softmax_in_place(p);
      } else if (form == ExpertWeights::kNormalized) {
        for (float& weight : w) weight /= sum;
      }
    }
  });
  rows.group();
  if (load != nullptr) add_load(p_TE, rows, *load);
}

void route_backward(ConstTensorView p_TE, const ExpertRows& rows, ExpertWeights form, ConstTensorView w_TK,
                    ConstTensorView dw_TK, std::span<const float> balance_E, TensorView dl_TE,
                    ThreadPool& pool) {
  check_routing(p_TE, rows, w_TK);
  check_routing(dl_TE, rows, dw_TK);
  const int64_t E = rows.num_experts(), K = rows.top_k;
  TESSERA_CHECK(balance_E.empty() || std::ssize(balance_E) == E, "{} of {} experts", balance_E.size(), E);
  with_activation_type(dl_TE.dtype(), [&]<typename A>(A) {
    pool.parallel_blocks(rows.num_tokens(), kRouteTokens, [&](int64_t begin, int64_t end) {
      std::array<float, kMaxExperts> dp;
      for (int64_t t = begin; t < end; ++t) {
        const float* const p = p_TE.as<float>() + t * E;
        const float* const w = w_TK.as<float>() + t * K;
        const float* const dw = dw_TK.as<float>() + t * K;
        const int32_t* const chosen = rows.experts.data() + t * K;
        float sum_p = 0, mean_dw = 0;
        for (int64_t j = 0; j < K; ++j) {
          sum_p += p[chosen[j]];
          mean_dw += dw[j] * w[j];
        }
        for (int64_t e = 0; e < E; ++e) {
          dp[static_cast<size_t>(e)] = balance_E.empty() ? 0 : balance_E[static_cast<size_t>(e)];
        }
        const bool of_chosen = form == ExpertWeights::kSoftmaxOfChosen;
        for (int64_t j = 0; j < K && !of_chosen; ++j) {
          dp[static_cast<size_t>(chosen[j])] +=
              form == ExpertWeights::kNormalized ? (dw[j] - mean_dw) / sum_p : dw[j];
        }
        float mean_dp = 0;
        for (int64_t e = 0; e < E; ++e) mean_dp += p[e] * dp[static_cast<size_t>(e)];
        for (int64_t e = 0; e < E; ++e) {
          float& dl = dp[static_cast<size_t>(e)];
          dl = p[e] * (dl - mean_dp);
        }
        for (int64_t j = 0; j < K && of_chosen; ++j) {
          dp[static_cast<size_t>(chosen[j])] += w[j] * (dw[j] - mean_dw);
        }
        for (int64_t e = 0; e < E; ++e) dl_TE.as<A>()[t * E + e] = from_float<A>(dp[static_cast<size_t>(e)]);
      }
    });
  });
}

void gather_expert_rows(ConstTensorView x_TD, const ExpertRows& rows, TensorView x_RD, ThreadPool& pool) {
  check_rows(x_RD, rows);
  TESSERA_CHECK(
      x_TD.dim(0) == rows.num_tokens() && x_TD.dim(1) == x_RD.dim(1) && x_TD.dtype() == x_RD.dtype(),
      "x {} {}, its rows {} {}", dtype_name(x_TD.dtype()), x_TD.shape().to_string(), dtype_name(x_RD.dtype()),
      x_RD.shape().to_string());
  constexpr int64_t kBlockBytes = 64 * 1024;
  const int64_t row_bytes = x_RD.dim(1) * dtype_bytes(x_RD.dtype());
  pool.parallel_blocks(rows.num_rows(), std::max<int64_t>(1, kBlockBytes / row_bytes),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t r = begin; r < end; ++r) {
                           const int64_t t = rows.choices[static_cast<size_t>(r)] / rows.top_k;
                           std::memcpy(x_RD.bytes() + r * row_bytes, x_TD.bytes() + t * row_bytes,
                                       static_cast<size_t>(row_bytes));
                         }
                       });
}

void combine_expert_rows(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK, TensorView y_TD,
                         Update update, ThreadPool& pool) {
  check_rows(y_RD, rows);
  TESSERA_CHECK(y_TD.shape() == (Shape{rows.num_tokens(), y_RD.dim(1)}) && y_TD.dtype() == y_RD.dtype() &&
                    (w_TK.empty() || w_TK.num_elements() == rows.num_rows()),
                "y {} {}, its rows {} {}, weights {}", dtype_name(y_TD.dtype()), y_TD.shape().to_string(),
                dtype_name(y_RD.dtype()), y_RD.shape().to_string(), w_TK.shape().to_string());
  moe_table().chosen().combine(y_RD, rows, w_TK, y_TD, update, pool);
}

void weigh_expert_rows(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
                       TensorView dw_TK, ThreadPool& pool) {
  check_rows(a_RF, rows);
  TESSERA_CHECK(b_RF.shape() == a_RF.shape() && b_RF.dtype() == a_RF.dtype() &&
                    w_TK.num_elements() == rows.num_rows() && dw_TK.num_elements() == rows.num_rows(),
                "rows {} {} and {} {}, weights {}", dtype_name(a_RF.dtype()), a_RF.shape().to_string(),
                dtype_name(b_RF.dtype()), b_RF.shape().to_string(), w_TK.shape().to_string());
  moe_table().chosen().weigh(rows, w_TK, a_RF, b_RF, dw_TK, pool);
}

namespace {

void check_bias(ConstTensorView b_EN, ConstTensorView of_rows, const ExpertRows& rows) {
  check_rows(of_rows, rows);
  TESSERA_CHECK(b_EN.shape() == (Shape{rows.num_experts(), of_rows.dim(1)}),
                "biases {} of {} experts, rows {}", b_EN.shape().to_string(), rows.num_experts(),
                of_rows.shape().to_string());
}

}  // namespace

void add_expert_bias(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN, ThreadPool& pool) {
  check_bias(b_EN, y_RN, rows);
  TESSERA_CHECK(b_EN.dtype() == y_RN.dtype(), "biases {}, rows {}", dtype_name(b_EN.dtype()),
                dtype_name(y_RN.dtype()));
  moe_table().chosen().add_bias(rows, b_EN, y_RN, pool);
}

void expert_bias_backward(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                          ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update,
                          ThreadPool& pool) {
  check_bias(b_EN, g_RN, rows);
  if (!db_EN.empty()) check_bias(db_EN, g_RN, rows);
  TESSERA_CHECK((w_TK.empty() || w_TK.num_elements() == rows.num_rows()) &&
                    (dw_TK.empty() || dw_TK.num_elements() == rows.num_rows()) &&
                    (db_EN.empty() || db_EN.dtype() == DType::kF32) && b_EN.dtype() == g_RN.dtype(),
                "{} rows {}, weights {} and {}, biases {}, their gradient {}", rows.num_rows(),
                dtype_name(g_RN.dtype()), w_TK.shape().to_string(), dw_TK.shape().to_string(),
                dtype_name(b_EN.dtype()), dtype_name(db_EN.dtype()));
  moe_table().chosen().bias_backward(rows, g_RN, w_TK, b_EN, dw_TK, db_EN, update, pool);
}

}  // namespace tessera
