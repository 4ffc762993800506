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

int64_t max_chunk_rows(const ModelConfig& config, int64_t max_tokens) {
  return std::min(max_tokens, kMlpChunkTokens) * config.experts->num_experts_per_tok;
}

namespace {

ExpertScratch allocate_expert_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_rows,
                                      bool training, bool with_gate_up) {
  const int64_t F = config.experts->moe_intermediate_size;
  ExpertScratch scratch;
  if (with_gate_up) scratch.gate_up_QF2 = allocate_tensor(arena, dtype, {num_rows, 2 * F});
  scratch.h_QF = allocate_tensor(arena, dtype, {num_rows, F});
  if (training) scratch.dh_QF = allocate_tensor(arena, dtype, {num_rows, F});
  return scratch;
}

}  // namespace

MoeScratch allocate_moe_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                bool training, bool with_gate_up, int64_t arriving_rows) {
  const MixtureOfExperts& experts = *config.experts;
  const int64_t C = std::min(num_tokens, kMlpChunkTokens);
  const int64_t D = config.hidden_size, E = experts.num_experts, K = experts.num_experts_per_tok;
  MoeScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, D});
  scratch.rstd_T = allocate_tensor(arena, DType::kF32, {num_tokens});
  scratch.p_CE = allocate_tensor(arena, DType::kF32, {C, E});
  scratch.w_CK = allocate_tensor(arena, DType::kF32, {C, K});
  if (training) {
    scratch.dw_CK = allocate_tensor(arena, DType::kF32, {C, K});
    scratch.dl_CE = allocate_tensor(arena, dtype, {C, E});
  }
  const bool is_divided = arriving_rows > 0;
  if (!is_divided) scratch.own = allocate_expert_scratch(arena, config, dtype, C * K, training, with_gate_up);
  scratch.own.x_QD = allocate_tensor(arena, dtype, {C * K, D});
  scratch.own.y_QD = allocate_tensor(arena, dtype, {C * K, D});
  if (!is_divided) return scratch;
  scratch.arriving =
      allocate_expert_scratch(arena, config, dtype, arriving_rows, training, /*with_gate_up=*/true);
  scratch.arriving.x_QD = allocate_tensor(arena, dtype, {arriving_rows, D});
  scratch.arriving.y_QD = allocate_tensor(arena, dtype, {arriving_rows, D});
  if (!training) return scratch;
  for (ExpertScratch* rows : {&scratch.own, &scratch.arriving}) {
    const int64_t count = rows->x_QD.dim(0);
    rows->w_Q = allocate_tensor(arena, DType::kF32, {count, 1});
    rows->dw_Q = allocate_tensor(arena, DType::kF32, {count, 1});
  }
  return scratch;
}

namespace {

// Tokens [begin, end) of a batch, and their routing.
struct MoeChunk {
  bool is_first;
  int64_t begin, end;
  ExpertRows& rows;
  TensorView p_CE, w_CK, dw_CK, dl_CE;
  ExpertScratch own;       // of these rows
  const Dropout* dropout;  // of the chunk's tokens
  std::vector<uint64_t>& dropout_tokens;

  bool empty() const { return begin == end; }
  TensorView of(TensorView all_TD) const { return all_TD.rows(begin, end); }
};

// The rows that experts of this rank compute: those of a chunk, or those that arrive in a round.
struct ExpertWork {
  ExpertRows& rows;
  ExpertRange experts;  // that may have rows
  ExpertScratch of;     // these rows
  TensorView w_TK, dw_TK;
  LoraScratch lora;  // of the expert at work
  const Dropout* dropout = nullptr;
  std::span<const uint64_t> dropout_tokens = {};
};

TensorView first_rows(TensorView scratch, int64_t count) {
  return scratch.empty() ? scratch : scratch.rows(0, count);
}
ExpertScratch first_rows(const ExpertScratch& scratch, int64_t count) {
  return {first_rows(scratch.x_QD, count),        first_rows(scratch.y_QD, count),
          first_rows(scratch.gate_up_QF2, count), first_rows(scratch.h_QF, count),
          first_rows(scratch.dh_QF, count),       first_rows(scratch.w_Q, count),
          first_rows(scratch.dw_Q, count)};
}

MoeChunk chunk_of(const MoeBlockConfig& config, int64_t num_experts, int64_t from, int64_t num_tokens,
                  const MlpSaved& saved, const MoeScratch& scratch) {
  const int64_t begin = std::min(from, num_tokens), end = std::min(begin + kMlpChunkTokens, num_tokens);
  const int64_t C = end - begin, R = C * config.top_k;
  scratch.router->rows.resize(C, config.top_k, num_experts);
  MoeChunk chunk = {from == 0,
                    begin,
                    end,
                    scratch.router->rows,
                    first_rows(scratch.p_CE, C),
                    first_rows(scratch.w_CK, C),
                    first_rows(scratch.dw_CK, C),
                    first_rows(scratch.dl_CE, C),
                    first_rows(scratch.own, R),
                    scratch.lora.dropout,
                    scratch.router->dropout_tokens};
  if (!saved.gate_up_TF2.empty())
    chunk.own.gate_up_QF2 = saved.gate_up_TF2.rows(begin * config.top_k, end * config.top_k);
  return chunk;
}

ExpertWork work_of(const MoeChunk& chunk, const MoeScratch& scratch) {
  return {chunk.rows,    {0, chunk.rows.num_experts()}, chunk.own, chunk.w_CK, chunk.dw_CK, scratch.lora,
          chunk.dropout, chunk.dropout_tokens};
}

ExpertWork arriving_work(ExpertExchange& exchange, int64_t round, const MoeScratch& scratch) {
  ExpertRows& rows = exchange.arriving(round);
  const ExpertScratch of = first_rows(scratch.arriving, rows.num_rows());
  return {rows, exchange.own_experts(), of, of.w_Q, of.dw_Q, scratch.lora};
}

// Calls body(expert, begin, end) with the rows of every expert, of those without rows too.
template <typename Body>
void for_each_expert(ExpertWork& work, const Body& body) {
  Dropout dropout;
  for (int64_t expert = work.experts.begin; expert < work.experts.end; ++expert) {
    const int64_t begin = work.rows.begin(expert), end = work.rows.end(expert);
    if (work.dropout != nullptr) {
      dropout = *work.dropout;
      dropout.tokens =
          work.dropout_tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      work.lora.dropout = &dropout;
    }
    body(static_cast<size_t>(expert), begin, end);
  }
}

// (2), (3)
void route_chunk(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, TensorView norm_TD,
                 RouterLoad* load, MoeChunk& chunk) {
  if (chunk.empty()) return chunk.rows.group();
  ops.linear(chunk.of(norm_TD), weights.router_ED, weights.router_bias_E, chunk.p_CE);
  ops.route(chunk.p_CE, config.weights, chunk.w_CK, chunk.rows, load);
  ops.gather_expert_rows(chunk.of(norm_TD), chunk.rows, chunk.own.x_QD);
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
void activate(Ops& ops, const MoeBlockConfig& config, const ExpertWork& work) {
  if (config.fused) return ops.clamped_swiglu(work.of.gate_up_QF2, *config.fused, work.of.h_QF);
  ops.swiglu(work.of.gate_up_QF2, work.of.h_QF);
}

// (4)
void compute_gate_up(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, ExpertWork& work) {
  for_each_expert(work, [&](size_t e, int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto& expert = weights.experts[e];
    const TensorView x = work.of.x_QD.rows(begin, end), gate_up = work.of.gate_up_QF2.rows(begin, end);
    multiply(ops, config, x, expert.w1_F2D, gate_up);
    lora_forward(ops, expert.lora_1, x, work.lora, gate_up);
  });
  if (!weights.b1_EF2.empty()) ops.add_expert_bias(work.rows, weights.b1_EF2, work.of.gate_up_QF2);
}

// (4) to (6)
void experts_forward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, ExpertWork work) {
  if (work.rows.num_rows() == 0) return;
  compute_gate_up(ops, config, weights, work);
  activate(ops, config, work);
  for_each_expert(work, [&](size_t e, int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto& expert = weights.experts[e];
    const TensorView h = work.of.h_QF.rows(begin, end), y = work.of.y_QD.rows(begin, end);
    multiply(ops, config, h, expert.w2_DF, y);
    lora_forward(ops, expert.lora_2, h, work.lora, y);
  });
  if (!weights.b2_ED.empty()) ops.add_expert_bias(work.rows, weights.b2_ED, work.of.y_QD);
}

// From g_r = dy_t, to which the weights apply later, in place of y_r: dh_r = w_tj g_r w2_e, the gradients of
// the weights w and of the bias, and w_tj h_r for the weight gradient of (6).
void down_proj_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                        const MoeGrads& grads, Update update, ExpertWork& work) {
  for_each_expert(work, [&](size_t e, int64_t begin, int64_t end) {
    if (begin == end) return;
    const auto& expert = weights.experts[e];
    const TensorView g = work.of.y_QD.rows(begin, end), dh = work.of.dh_QF.rows(begin, end);
    multiply_gradient(ops, config, g, expert.w2_DF, dh);
    lora_backward_output(ops, expert.lora_2, g, work.lora);
    lora_backward_input(ops, expert.lora_2, work.lora, dh);
  });
  activate(ops, config, work);
  // y_r = h_r w2^T, so that dw_tj = dy_t y_r = (g_r w2) h_r.
  ops.weigh_expert_rows(work.rows, work.w_TK, work.of.dh_QF, work.of.h_QF, work.dw_TK);
  // y_r = h_r w2^T + b2
  if (!weights.b2_ED.empty())
    ops.expert_bias_backward(work.rows, work.of.y_QD, work.w_TK, weights.b2_ED, work.dw_TK, grads.b2_ED,
                             update);
}

// (7), (6), (5), (4): the gradients of the experts and of the weights w, and in place of x_r that of x_r.
// `keeps_gate_up`: it has been computed.
void experts_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                      const MoeGrads& grads, WeightUpdate update, bool keeps_gate_up, ExpertWork work) {
  if (!keeps_gate_up && work.rows.num_rows() > 0) compute_gate_up(ops, config, weights, work);
  down_proj_backward(ops, config, weights, grads, update.mode, work);
  const TensorView dgate_up_QF2 = work.of.gate_up_QF2;  // in place
  if (config.fused) {
    ops.clamped_swiglu_backward(work.of.dh_QF, work.of.gate_up_QF2, *config.fused, dgate_up_QF2,
                                work.of.dh_QF);
  } else {
    ops.swiglu_backward(work.of.dh_QF, work.of.gate_up_QF2, dgate_up_QF2, /*h, again=*/work.of.dh_QF);
  }
  if (!grads.b1_EF2.empty())
    ops.expert_bias_backward(work.rows, dgate_up_QF2, /*w_TK=*/{}, weights.b1_EF2, /*dw_TK=*/{}, grads.b1_EF2,
                             update.mode);
  for_each_expert(work, [&](size_t e, int64_t begin, int64_t end) {
    const auto& expert = weights.experts[e];
    const auto& gradient = grads.experts[e];
    const TensorView g = work.of.y_QD.rows(begin, end), weighted_h = work.of.h_QF.rows(begin, end);
    const TensorView dgate_up = dgate_up_QF2.rows(begin, end), x = work.of.x_QD.rows(begin, end);
    matrix_gradient(ops, config, g, weighted_h, gradient.w2_DF, update);
    lora_backward_output(ops, expert.lora_2, g, work.lora);
    lora_backward_weights(ops, expert.lora_2, gradient.lora_2, update.mode, g, weighted_h, work.lora);

    matrix_gradient(ops, config, dgate_up, x, gradient.w1_F2D, update);
    lora_backward_output(ops, expert.lora_1, dgate_up, work.lora);
    lora_backward_weights(ops, expert.lora_1, gradient.lora_1, update.mode, dgate_up, x, work.lora);
    if (begin == end) return;
    multiply_gradient(ops, config, dgate_up, expert.w1_F2D, /*dx=*/x);
    lora_backward_input(ops, expert.lora_1, work.lora, x);
  });
}

// Calls body(chunk, has_more) for the chunks of a batch; it returns whether there is another, which ranks
// that exchange rows decide together.
template <typename Body>
void for_each_moe_chunk(const MoeBlockConfig& config, const MoeWeights& weights, int64_t num_tokens,
                        const MlpSaved& saved, const MoeScratch& scratch, const Body& body) {
  bool has_more = true;
  for (int64_t from = 0; has_more; from += kMlpChunkTokens) {
    const MoeChunk chunk = chunk_of(config, std::ssize(weights.experts), from, num_tokens, saved, scratch);
    has_more = body(chunk, chunk.end < num_tokens);
  }
}

// The weights of a chunk's choices in the order of its rows, and their gradients back.
void order_by_rows(const MoeChunk& chunk) {
  const float* const w_TK = chunk.w_CK.as<float>();
  float* const w_R = chunk.own.w_Q.as<float>();
  for (size_t row = 0; row < chunk.rows.choices.size(); ++row) w_R[row] = w_TK[chunk.rows.choices[row]];
}
void order_by_choices(const MoeChunk& chunk) {
  const float* const dw_R = chunk.own.dw_Q.as<float>();
  float* const dw_TK = chunk.dw_CK.as<float>();
  for (size_t row = 0; row < chunk.rows.choices.size(); ++row) dw_TK[chunk.rows.choices[row]] = dw_R[row];
}

bool exchange_forward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                      const MoeChunk& chunk, bool has_more, const MoeScratch& scratch) {
  ExpertExchange& exchange = *scratch.exchange;
  const ExpertExchange::Agreement agreement = exchange.agree(chunk.rows, has_more);
  for (int64_t round = 0; round < agreement.num_rounds; ++round) {
    const ExpertWork work = arriving_work(exchange, round, scratch);
    exchange.send(chunk.own.x_QD, work.of.x_QD);
    experts_forward(ops, config, weights, work);
    exchange.give_back(work.of.y_QD, chunk.own.y_QD);
  }
  return agreement.has_more;
}

bool exchange_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                       const MoeGrads& grads, WeightUpdate update, const MoeChunk& chunk, bool has_more,
                       const MoeScratch& scratch) {
  ExpertExchange& exchange = *scratch.exchange;
  const ExpertExchange::Agreement agreement = exchange.agree(chunk.rows, has_more);
  order_by_rows(chunk);
  for (int64_t round = 0; round < agreement.num_rounds; ++round) {
    const ExpertWork work = arriving_work(exchange, round, scratch);
    exchange.send(chunk.own.x_QD, work.of.x_QD);
    exchange.send(chunk.own.y_QD, work.of.y_QD);
    exchange.send(chunk.own.w_Q, work.of.w_Q);
    const bool is_last = !agreement.has_more && round + 1 == agreement.num_rounds;
    const WeightUpdate of_round = {chunk.is_first && round == 0 ? update.mode : Update::kAdd,
                                   is_last ? update.squares : nullptr};
    experts_backward(ops, config, weights, grads, of_round, /*keeps_gate_up=*/false, work);
    exchange.give_back(work.of.x_QD, chunk.own.x_QD);
    exchange.give_back(work.of.dw_Q, chunk.own.dw_Q);
  }
  order_by_choices(chunk);
  return agreement.has_more;
}

// (3), (2): from the gradients of the rows and of their weights that of the block's input, in place of norm.
void router_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights, const MoeGrads& grads,
                     WeightUpdate update, const MoeChunk& chunk, const MoeScratch& scratch) {
  // l = norm router^T
  ops.route_backward(chunk.p_CE, chunk.rows, config.weights, chunk.w_CK, chunk.dw_CK,
                     scratch.router->balance_gradient, chunk.dl_CE);
  const TensorView norm_CD = chunk.of(scratch.norm_TD);
  if (!grads.router_bias_E.empty()) ops.linear_backward_bias(chunk.dl_CE, grads.router_bias_E, update.mode);
  if (!grads.router_ED.empty()) ops.linear_backward_weight(chunk.dl_CE, norm_CD, grads.router_ED, update);
  ops.linear_backward_input(chunk.dl_CE, weights.router_ED, /*dnorm=*/norm_CD, Update::kOverwrite);
  ops.combine_expert_rows(chunk.own.x_QD, chunk.rows, /*w_TK=*/{}, norm_CD, Update::kAdd);
}

}  // namespace

void moe_block_forward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                       ConstTensorView residual_TD, const MlpSaved& saved, const MoeScratch& scratch,
                       TensorView y_TD) {
  const int64_t num_tokens = y_TD.dim(0);
  if (num_tokens > 0)
    residual_norm(ops, saved.x_TD, residual_TD, weights.norm_D, config.norm, scratch.norm_TD, scratch.rstd_T);
  RouterLoad* const load = scratch.router->sums_load ? &scratch.router->load : nullptr;
  for_each_moe_chunk(config, weights, num_tokens, saved, scratch, [&](MoeChunk chunk, bool has_more) {
    route_chunk(ops, config, weights, scratch.norm_TD, load, chunk);
    if (scratch.exchange == nullptr) {
      experts_forward(ops, config, weights, work_of(chunk, scratch));
    } else {
      has_more = exchange_forward(ops, config, weights, chunk, has_more, scratch);
    }
    if (!chunk.empty())
      ops.combine_expert_rows(chunk.own.y_QD, chunk.rows, chunk.w_CK, chunk.of(y_TD), Update::kOverwrite);
    return has_more;
  });
}

void moe_block_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                        const MoeGrads& grads, WeightUpdate update, const MlpSaved& saved,
                        const MoeScratch& scratch, TensorView dx_TD) {
  const int64_t num_tokens = dx_TD.dim(0);
  if (num_tokens > 0)
    norm_forward(ops, config.norm, saved.x_TD, weights.norm_D, scratch.norm_TD, scratch.rstd_T);
  for_each_moe_chunk(config, weights, num_tokens, saved, scratch, [&](MoeChunk chunk, bool has_more) {
    const WeightUpdate of_chunk = {chunk.is_first ? update.mode : Update::kAdd,
                                   chunk.end == num_tokens ? update.squares : nullptr};
    route_chunk(ops, config, weights, scratch.norm_TD, /*load=*/nullptr, chunk);
    if (!chunk.empty()) ops.gather_expert_rows(chunk.of(dx_TD), chunk.rows, /*g_RD=*/chunk.own.y_QD);
    if (scratch.exchange == nullptr) {
      experts_backward(ops, config, weights, grads, of_chunk, !saved.gate_up_TF2.empty(),
                       work_of(chunk, scratch));
    } else {
      has_more = exchange_backward(ops, config, weights, grads, update, chunk, has_more, scratch);
    }
    if (!chunk.empty()) router_backward(ops, config, weights, grads, of_chunk, chunk, scratch);
    return has_more;
  });
  // (1) norm = rmsnorm(x)
  if (num_tokens > 0)
    norm_backward(ops, config.norm, scratch.norm_TD, saved.x_TD, weights.norm_D, scratch.rstd_T, dx_TD,
                  Update::kAdd, grads.norm_D, update.mode);
}

}  // namespace tessera
