#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/moe/moe_impl.h"

namespace tessera {
namespace {

void combine_ref(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK, TensorView y_TD,
                 Update update, ThreadPool& /*pool*/) {
  const int64_t D = y_TD.dim(1), K = rows.top_k;
  with_activation_type(y_TD.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < y_TD.dim(0); ++t) {
      for (int64_t d = 0; d < D; ++d) {
        A& y = y_TD.as<A>()[t * D + d];
        float sum = update == Update::kAdd ? to_float(y) : 0;
        for (int64_t j = t * K; j < (t + 1) * K; ++j) {
          const float of_expert = to_float(y_RD.as<A>()[rows.rows[static_cast<size_t>(j)] * D + d]);
          sum += w_TK.empty() ? of_expert : w_TK.as<float>()[j] * of_expert;
        }
        y = from_float<A>(sum);
      }
    }
  });
}

void weigh_ref(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
               TensorView dw_TK, ThreadPool& /*pool*/) {
  const int64_t F = a_RF.dim(1);
  with_activation_type(a_RF.dtype(), [&]<typename A>(A) {
    for (int64_t r = 0; r < rows.num_rows(); ++r) {
      const int32_t choice = rows.choices[static_cast<size_t>(r)];
      const float w = w_TK.as<float>()[choice];
      A* a = a_RF.as<A>() + r * F;
      A* b = b_RF.as<A>() + r * F;
      float sum = 0;
      for (int64_t f = 0; f < F; ++f) sum += to_float(a[f]) * to_float(b[f]);
      dw_TK.as<float>()[choice] = sum;
      for (int64_t f = 0; f < F; ++f) {
        a[f] = from_float<A>(to_float(a[f]) * w);
        b[f] = from_float<A>(to_float(b[f]) * w);
      }
    }
  });
}

// Calls body(row, expert) in the order of the rows.
template <typename Body>
void for_each_expert_row(const ExpertRows& rows, const Body& body) {
  for (int64_t e = 0; e < rows.num_experts(); ++e) {
    for (int64_t r = rows.begin(e); r < rows.end(e); ++r) body(r, e);
  }
}

void add_bias_ref(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN, ThreadPool& /*pool*/) {
  const int64_t N = y_RN.dim(1);
  with_activation_type(y_RN.dtype(), [&]<typename A>(A) {
    for_each_expert_row(rows, [&](int64_t r, int64_t e) {
      for (int64_t n = 0; n < N; ++n) {
        A& y = y_RN.as<A>()[r * N + n];
        y = from_float<A>(to_float(y) + to_float(b_EN.as<A>()[e * N + n]));
      }
    });
  });
}

void bias_backward_ref(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                       ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update,
                       ThreadPool& /*pool*/) {
  const int64_t N = g_RN.dim(1);
  if (!db_EN.empty() && update == Update::kOverwrite)
    std::fill_n(db_EN.as<float>(), db_EN.num_elements(), 0.0f);
  with_activation_type(g_RN.dtype(), [&]<typename A>(A) {
    for_each_expert_row(rows, [&](int64_t r, int64_t e) {
      const int32_t choice = rows.choices[static_cast<size_t>(r)];
      const float w = w_TK.empty() ? 1 : w_TK.as<float>()[choice];
      float product = 0;
      for (int64_t n = 0; n < N; ++n) {
        const float g = to_float(g_RN.as<A>()[r * N + n]);
        product += g * to_float(b_EN.as<A>()[e * N + n]);
        if (!db_EN.empty()) db_EN.as<float>()[e * N + n] += w * g;
      }
      if (!dw_TK.empty()) dw_TK.as<float>()[choice] += product;
    });
  });
}

}  // namespace

std::vector<Implementation<MoeKernels>> moe_ref() {
  return {{"ref",
           Isa::kRef,
           {.combine = combine_ref,
            .weigh = weigh_ref,
            .add_bias = add_bias_ref,
            .bias_backward = bias_backward_ref}}};
}

}  // namespace tessera
