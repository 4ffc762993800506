// A mixture of experts around the products of its experts: the choice of experts, the rows these compute,
// and the sum of their results; forward and backward.
//
//   route           p_te = exp(l_te) / sum_f exp(l_tf); the k largest p of a token are its choices
//                   w_tj = p of choice j, divided by the sum of all k if they are normalized; or the softmax
//                   of the chosen l
//   gather          x_r = x_t of row r, a choice of token t
//   combine         y_t = sum_j w_tj y_r, r the row of choice j, or the sum without weights
//   weigh           dw_tj = sum_f a_rf b_rf, then a_r *= w_tj, b_r *= w_tj
//   expert bias     y_r += b_e of the row's expert e
//                   db_e = sum over its rows of w_tj g_r, dw_tj += sum_n b_en g_rn
//   route backward  dp_te = sum of dw_tj over choices j = e, plus a constant of e;
//                   for normalized ones of (dw_tj - sum_i dw_ti w_ti) / sum_i p_ti
//                   dl_te = p_te (dp_te - sum_f p_tf dp_tf); of the softmax of the chosen l,
//                   where dp_te is the constant alone, plus w_tj (dw_tj - sum_i dw_ti w_ti)
//
// Types: l, p, w and dw are F32, x and y A = BF16 or F32. Sums over j run in the order of the choices, sums
// over f and e in float32; results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/moe/expert_rows.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Experts that route() can choose from.
inline constexpr int64_t kMaxExperts = 1024;

// On entry p_TE holds the logits. `rows` has been resized for T, k and E; it is filled. Choices are in
// descending order of p, equal ones and NaN as torch.topk orders them on the CPU. Adds to `load` unless null.
void route(TensorView p_TE, ExpertWeights form, TensorView w_TK, ExpertRows& rows, RouterLoad* load,
           ThreadPool& pool);

// dl_TE is A. balance_E is the constant of each expert, or empty.
void route_backward(ConstTensorView p_TE, const ExpertRows& rows, ExpertWeights form, ConstTensorView w_TK,
                    ConstTensorView dw_TK, std::span<const float> balance_E, TensorView dl_TE,
                    ThreadPool& pool);

void gather_expert_rows(ConstTensorView x_TD, const ExpertRows& rows, TensorView x_RD, ThreadPool& pool);

// y_TD = or +=. w_TK may be empty.
void combine_expert_rows(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK, TensorView y_TD,
                         Update update, ThreadPool& pool);

void weigh_expert_rows(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
                       TensorView dw_TK, ThreadPool& pool);

// y_RN += b_EN of each row's expert; b is A.
void add_expert_bias(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN, ThreadPool& pool);

// The gradient of y_r before its weight, from g_RN: that of y_t, or without w_TK of y_r. dw_TK receives the
// bias's part and db_EN (F32) the gradient, = or +=; each may be empty. The sums over r run in row order.
void expert_bias_backward(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                          ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update,
                          ThreadPool& pool);

}  // namespace tessera
