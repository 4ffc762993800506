#include "model/blocks/moe_block.h"

#include <algorithm>

#include "model/allocate.h"
#include "model/blocks/residual_norm.h"

namespace tessera {

MoeBlockConfig moe_block_config(const ModelConfig& config) {
  if (!config.experts) return {};
  const MixtureOfExperts& experts = *config.experts;
  const ExpertWeights weights = experts.fused            ? ExpertWeights::kSoftmaxOfChosen
                                : experts.norm_topk_prob ? ExpertWeights::kNormalized
                                                         : ExpertWeights::kProbabilities;
  return {NormConfig(config), experts.num_experts_per_tok, weights, experts.fused};
}

void RouterState::reserve(const ModelConfig& config, int64_t max_tokens) {
  const MixtureOfExperts& experts = *config.experts;
  const int64_t chunk_tokens = std::min(max_tokens, kMlpChunkTokens);
  rows.resize(chunk_tokens, experts.num_experts_per_tok, experts.num_experts);
  if (config.lora && config.lora->lora_dropout > 0) {
    dropout_tokens.reserve(static_cast<size_t>(chunk_tokens * experts.num_experts_per_tok));
  }
  load.reset(experts.num_experts);
  balance_gradient.reserve(static_cast<size_t>(experts.num_experts));
}

TensorView allocate_expert_gate_up(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens) {
  const MixtureOfExperts& experts = *config.experts;
  return allocate_tensor(arena, dtype,
                         {num_tokens * experts.num_experts_per_tok, 2 * experts.moe_intermediate_size});
}

MoeScratch allocate_moe_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                bool training, bool with_gate_up) {
  const MixtureOfExperts& experts = *config.experts;
  const int64_t C = std::min(num_tokens, kMlpChunkTokens);
  const int64_t D = config.hidden_size, E = experts.num_experts, K = experts.num_experts_per_tok;
  const int64_t R = C * K, F = experts.moe_intermediate_size;
  MoeScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, D});
  scratch.rstd_T = allocate_tensor(arena, DType::kF32, {num_tokens});
  scratch.p_CE = allocate_tensor(arena, DType::kF32, {C, E});
  scratch.w_CK = allocate_tensor(arena, DType::kF32, {C, K});
  scratch.x_RD = allocate_tensor(arena, dtype, {R, D});
  scratch.y_RD = allocate_tensor(arena, dtype, {R, D});
  if (with_gate_up) scratch.gate_up_RF2 = allocate_expert_gate_up(arena, config, dtype, C);
  scratch.h_RF = allocate_tensor(arena, dtype, {R, F});
  if (!training) return scratch;
  scratch.dw_CK = allocate_tensor(arena, DType::kF32, {C, K});
  scratch.dl_CE = allocate_tensor(arena, dtype, {C, E});
  scratch.dh_RF = allocate_tensor(arena, dtype, {R, F});
  return scratch;
}

namespace {

// Tokens [begin, end) of a batch: their routing, and where the rows of their experts are.
struct MoeChunk {
  int64_t begin, end;
  ExpertRows& rows;
  TensorView p_CE, w_CK, dw_CK, dl_CE;
  TensorView x_RD, y_RD, gate_up_RF2, h_RF, dh_RF;
  const Dropout* dropout;  // of the chunk's tokens
  LoraScratch lora;        // of the expert at work
  std::vector<uint64_t>& dropout_tokens;

  TensorView of(TensorView all_TD) const { return all_TD.rows(begin, end); }
};

MoeChunk chunk_of(const MoeBlockConfig& config, int64_t num_experts, int64_t begin, int64_t end,
                  const MlpSaved& saved, const MoeScratch& scratch) {
  const int64_t C = end - begin, R = C * config.top_k;
  scratch.router->rows.resize(C, config.top_k, num_experts);
  const auto first = [](TensorView scratch_view, int64_t count) {
    return scratch_view.empty() ? scratch_view : scratch_view.rows(0, count);
  };
  const bool is_kept = !saved.gate_up_TF2.empty();
  return {begin,
          end,
          scratch.router->rows,
          first(scratch.p_CE, C),
          first(scratch.w_CK, C),
          first(scratch.dw_CK, C),
          first(scratch.dl_CE, C),
          first(scratch.x_RD, R),
          first(scratch.y_RD, R),
          is_kept ? saved.gate_up_TF2.rows(begin * config.top_k, end * config.top_k)
                  : first(scratch.gate_up_RF2, R),
          first(scratch.h_RF, R),
          first(scratch.dh_RF, R),
          scratch.lora.dropout,
          scratch.lora,
          scratch.router->dropout_tokens};
}

// Calls body(expert, begin, end) with the rows of every expert, of those without rows too.
template <typename Body>
void for_each_expert(MoeChunk& chunk, const Body& body) {
  Dropout dropout;
  for (int64_t expert = 0; expert < chunk.rows.num_experts(); ++expert) {
    const int64_t begin = chunk.rows.begin(expert), end = chunk.rows.end(expert);
    if (chunk.dropout != nullptr) {
      dropout = *chunk.dropout;
      dropout.tokens = std::span<const uint64_t>(chunk.dropout_tokens)
                           .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      chunk.lora.dropout = &dropout;
    }
    body(static_cast<size_t>(expert), begin, end);
  }
}

// (2), (3)
void route_chunk(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, TensorView norm_TD,
                 RouterLoad* load, MoeChunk& chunk) {
  ops.linear(chunk.of(norm_TD), weights.router_ED, weights.router_bias_E, chunk.p_CE);
  ops.route(chunk.p_CE, config.weights, chunk.w_CK, chunk.rows, load);
  ops.gather_expert_rows(chunk.of(norm_TD), chunk.rows, chunk.x_RD);
  if (chunk.dropout == nullptr) return;
  chunk.dropout_tokens.clear();
  for (const int32_t choice : chunk.rows.choices) {
    const auto token = static_cast<size_t>(chunk.begin + choice / config.top_k);
    chunk.dropout_tokens.push_back(chunk.dropout->tokens[token]);
  }
}

// The products of an expert, whose matrix is [out, in], or [in, out] of fused ones: y = x w^T, and dx = dy w.
void multiply(Ops& ops, const MoeBlockConfig& config, ConstTensorView x, const LinearWeight& w,
              TensorView y) {
  if (config.fused) return ops.linear_backward_input(x, w, y, Update::kOverwrite);
  ops.linear(x, w, /*bias_N=*/{}, y);
}
void multiply_gradient(Ops& ops, const MoeBlockConfig& config, ConstTensorView dy, const LinearWeight& w,
                       TensorView dx) {
  if (config.fused) return ops.linear(dy, w, /*bias_N=*/{}, dx);
  ops.linear_backward_input(dy, w, dx, Update::kOverwrite);
}
void matrix_gradient(Ops& ops, const MoeBlockConfig& config, ConstTensorView dy, ConstTensorView x,
                     TensorView dw, WeightUpdate update) {
  if (dw.empty()) return;
  if (config.fused) return ops.linear_backward_weight(x, dy, dw, update);
  ops.linear_backward_weight(dy, x, dw, update);
}

// (5)
void activate(Ops& ops, const MoeBlockConfig& config, const MoeChunk& chunk) {
  if (config.fused) return ops.clamped_swiglu(chunk.gate_up_RF2, *config.fused, chunk.h_RF);
  ops.swiglu(chunk.gate_up_RF2, chunk.h_RF);
}

// (4)
void compute_gate_up(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, MoeChunk& chunk) {
  for_each_expert(chunk, [&](size_t e, int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto& expert = weights.experts[e];
    const TensorView x = chunk.x_RD.rows(begin, end), gate_up = chunk.gate_up_RF2.rows(begin, end);
    multiply(ops, config, x, expert.w1_F2D, gate_up);
    lora_forward(ops, expert.lora_1, x, chunk.lora, gate_up);
  });
  if (!weights.b1_EF2.empty()) ops.add_expert_bias(chunk.rows, weights.b1_EF2, chunk.gate_up_RF2);
}

template <typename Body>
void for_each_moe_chunk(const MoeBlockConfig& config, const MoeWeights& weights, int64_t num_tokens,
                        const MlpSaved& saved, const MoeScratch& scratch, const Body& body) {
  for (int64_t begin = 0; begin < num_tokens; begin += kMlpChunkTokens) {
    const int64_t end = std::min(begin + kMlpChunkTokens, num_tokens);
    body(chunk_of(config, std::ssize(weights.experts), begin, end, saved, scratch));
  }
}

// dh_r = w_tj dy_t w2_e, the gradients of the weights w and of the bias, and w_tj h_r for the weight gradient
// of (6).
void down_proj_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                        const MoeGrads& grads, Update update, ConstTensorView dy_TD, MoeChunk& chunk) {
  // The weights apply later: g_r = dy_t.
  const TensorView g_RD = chunk.y_RD;
  ops.gather_expert_rows(dy_TD.rows(chunk.begin, chunk.end), chunk.rows, g_RD);
  for_each_expert(chunk, [&](size_t e, int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto& expert = weights.experts[e];
    const TensorView g = g_RD.rows(begin, end), dh = chunk.dh_RF.rows(begin, end);
    multiply_gradient(ops, config, g, expert.w2_DF, dh);
    lora_backward_output(ops, expert.lora_2, g, chunk.lora);
    lora_backward_input(ops, expert.lora_2, chunk.lora, dh);
  });
  activate(ops, config, chunk);
  // y_r = h_r w2^T, so that dw_tj = dy_t y_r = (g_r w2) h_r.
  ops.weigh_expert_rows(chunk.rows, chunk.w_CK, chunk.dh_RF, chunk.h_RF, chunk.dw_CK);
  // y_r = h_r w2^T + b2
  if (!weights.b2_ED.empty())
    ops.expert_bias_backward(chunk.rows, g_RD, chunk.w_CK, weights.b2_ED, chunk.dw_CK, grads.b2_ED, update);
}

// The gradients of the experts, and in place of x_r that of x_r.
void experts_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                      const MoeGrads& grads, WeightUpdate update, MoeChunk& chunk) {
  const TensorView dgate_up_RF2 = chunk.gate_up_RF2;  // in place
  if (config.fused) {
    ops.clamped_swiglu_backward(chunk.dh_RF, chunk.gate_up_RF2, *config.fused, dgate_up_RF2, chunk.dh_RF);
  } else {
    ops.swiglu_backward(chunk.dh_RF, chunk.gate_up_RF2, dgate_up_RF2, /*h, again=*/chunk.dh_RF);
  }
  if (!grads.b1_EF2.empty())
    ops.expert_bias_backward(chunk.rows, dgate_up_RF2, /*w_TK=*/{}, weights.b1_EF2, /*dw_TK=*/{},
                             grads.b1_EF2, update.mode);
  for_each_expert(chunk, [&](size_t e, int64_t begin, int64_t end) {
    const auto& expert = weights.experts[e];
    const auto& gradient = grads.experts[e];
    const TensorView g = chunk.y_RD.rows(begin, end), weighted_h = chunk.h_RF.rows(begin, end);
    const TensorView dgate_up = dgate_up_RF2.rows(begin, end), x = chunk.x_RD.rows(begin, end);
    matrix_gradient(ops, config, g, weighted_h, gradient.w2_DF, update);
    lora_backward_output(ops, expert.lora_2, g, chunk.lora);
    lora_backward_weights(ops, expert.lora_2, gradient.lora_2, update.mode, g, weighted_h, chunk.lora);

    matrix_gradient(ops, config, dgate_up, x, gradient.w1_F2D, update);
    lora_backward_output(ops, expert.lora_1, dgate_up, chunk.lora);
    lora_backward_weights(ops, expert.lora_1, gradient.lora_1, update.mode, dgate_up, x, chunk.lora);
    if (begin == end) return;
    multiply_gradient(ops, config, dgate_up, expert.w1_F2D, /*dx=*/x);
    lora_backward_input(ops, expert.lora_1, chunk.lora, x);
  });
}

}  // namespace

void moe_block_forward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                       ConstTensorView residual_TD, const MlpSaved& saved, const MoeScratch& scratch,
                       TensorView y_TD) {
  residual_norm(ops, saved.x_TD, residual_TD, weights.norm_D, config.norm, scratch.norm_TD, scratch.rstd_T);
  RouterLoad* const load = scratch.router->sums_load ? &scratch.router->load : nullptr;
  for_each_moe_chunk(config, weights, y_TD.dim(0), saved, scratch, [&](MoeChunk chunk) {
    route_chunk(ops, config, weights, scratch.norm_TD, load, chunk);
    compute_gate_up(ops, config, weights, chunk);
    activate(ops, config, chunk);
    for_each_expert(chunk, [&](size_t e, int64_t begin, int64_t end) {
      if (begin == end) return;
      const auto& expert = weights.experts[e];
      const TensorView h = chunk.h_RF.rows(begin, end), y = chunk.y_RD.rows(begin, end);
      multiply(ops, config, h, expert.w2_DF, y);
      lora_forward(ops, expert.lora_2, h, chunk.lora, y);
    });
    if (!weights.b2_ED.empty()) ops.add_expert_bias(chunk.rows, weights.b2_ED, chunk.y_RD);
    ops.combine_expert_rows(chunk.y_RD, chunk.rows, chunk.w_CK, chunk.of(y_TD), Update::kOverwrite);
  });
}

void moe_block_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                        const MoeGrads& grads, WeightUpdate update, const MlpSaved& saved,
                        const MoeScratch& scratch, TensorView dx_TD) {
  const int64_t num_tokens = dx_TD.dim(0);
  norm_forward(ops, config.norm, saved.x_TD, weights.norm_D, scratch.norm_TD, scratch.rstd_T);
  for_each_moe_chunk(config, weights, num_tokens, saved, scratch, [&](MoeChunk chunk) {
    const WeightUpdate of_chunk = {chunk.begin == 0 ? update.mode : Update::kAdd,
                                   chunk.end == num_tokens ? update.squares : nullptr};
    route_chunk(ops, config, weights, scratch.norm_TD, /*load=*/nullptr, chunk);
    if (saved.gate_up_TF2.empty()) compute_gate_up(ops, config, weights, chunk);
    // (7), (6)
    down_proj_backward(ops, config, weights, grads, of_chunk.mode, dx_TD, chunk);
    // (5), (4)
    experts_backward(ops, config, weights, grads, of_chunk, chunk);
    // (2) l = norm router^T
    ops.route_backward(chunk.p_CE, chunk.rows, config.weights, chunk.w_CK, chunk.dw_CK,
                       scratch.router->balance_gradient, chunk.dl_CE);
    const TensorView norm_CD = chunk.of(scratch.norm_TD);
    if (!grads.router_bias_E.empty())
      ops.linear_backward_bias(chunk.dl_CE, grads.router_bias_E, of_chunk.mode);
    if (!grads.router_ED.empty()) {
      ops.linear_backward_weight(chunk.dl_CE, norm_CD, grads.router_ED, of_chunk);
    }
    ops.linear_backward_input(chunk.dl_CE, weights.router_ED, /*dnorm=*/norm_CD, Update::kOverwrite);
    // (3)
    ops.combine_expert_rows(chunk.x_RD, chunk.rows, /*w_TK=*/{}, norm_CD, Update::kAdd);
  });
  // (1) norm = rmsnorm(x)
  norm_backward(ops, config.norm, scratch.norm_TD, saved.x_TD, weights.norm_D, scratch.rstd_T, dx_TD,
                Update::kAdd, grads.norm_D, update.mode);
}

}  // namespace tessera
