// A mixture of experts in place of a decoder layer's feed-forward half, forward and backward.
//
//   forward:  (1) x += residual,  norm = rmsnorm(x)
//             (2) l = norm router^T in float32, and each token's choices of experts with their weights
//             (3) x_r = norm_t, a row for each choice, grouped by expert
//             (4) gate_up_r = x_r w1_e^T    (5) h_r = silu(gate) * up    (6) y_r = h_r w2_e^T
//             (7) y_t = sum of w_tj y_r over the choices j of t
//
// GPT-OSS has biases in (2), (4) and (6), matrices [in, out] and another activation
// (MixtureOfExperts::fused).
//
// The experts may be divided among nodes (ops/expert_exchange.h): then (4) to (6) and their backward take
// rows that arrive from the ranks of a rail, in rounds, and their results go back.
//
// Adapters (model/lora.h) add to (4) and (6). Conventions are those of mlp_block.h, as is the division into
// chunks of tokens. Nothing of the routing is kept: backward computes it again, with the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "kernels/moe/expert_rows.h"
#include "model/blocks/mlp_block.h"
#include "model/lora.h"
#include "ops/expert_exchange.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct ExpertTensors {
  Matrix w1_F2D;  // gate_proj, up_proj; fused: [D, 2 F]
  Matrix w2_DF;   // down_proj; fused: [F, D]
  LoraTensors<View> lora_1;
  LoraTensors<View> lora_2;
};

template <typename View, typename Matrix = View>
struct MoeTensors {
  View norm_D;
  View router_ED;
  View router_bias_E;  // with b1 and b2, of fused experts
  View b1_EF2;
  View b2_ED;
  std::vector<ExpertTensors<View, Matrix>> experts;  // empty: the layer has a dense MLP

  bool empty() const { return experts.empty(); }
};
using MoeWeights = MoeTensors<ConstTensorView, LinearWeight>;
using MoeGrads = MoeTensors<TensorView>;

struct MoeBlockConfig {
  NormConfig norm = {};
  int64_t top_k = 0;
  ExpertWeights weights = ExpertWeights::kProbabilities;
  std::optional<ClampedSwiglu> fused = {};
};
MoeBlockConfig moe_block_config(const ModelConfig& config);

// The host's part of the routing: the rows of a chunk, and what the loss of the balance between experts takes
// from forward to backward.
struct RouterState {
  ExpertRows rows;
  std::vector<uint64_t> dropout_tokens;  // of the rows
  bool sums_load = false;
  RouterLoad load;
  std::vector<float> balance_gradient;  // empty: none

  void reserve(const ModelConfig& config, int64_t max_tokens);
};

// What the products of experts read and write, for up to Q rows.
struct ExpertScratch {
  TensorView x_QD, y_QD;
  TensorView gate_up_QF2;  // empty if every layer keeps its own
  TensorView h_QF;
  TensorView dh_QF;      // training
  TensorView w_Q, dw_Q;  // F32; of rows that arrive, in training
};

// Needed only while the block runs. C tokens of a chunk, R = C k.
struct MoeScratch {
  TensorView norm_TD, rstd_T;
  TensorView p_CE, w_CK;    // F32
  TensorView dw_CK, dl_CE;  // training
  ExpertScratch own;        // the R rows of the chunk; x and y alone if the experts are divided
  ExpertScratch arriving;   // if they are
  LoraScratch lora;
  RouterState* router = nullptr;
  ExpertExchange* exchange = nullptr;
};

// Rows [T k, 2 F] of a layer that keeps them.
TensorView allocate_expert_gate_up(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens);
// `arriving_rows`: room for so many rows of experts that are divided among nodes, or 0.
MoeScratch allocate_moe_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                bool training, bool with_gate_up, int64_t arriving_rows);
// The largest number of rows of a chunk of a batch.
int64_t max_chunk_rows(const ModelConfig& config, int64_t max_tokens);

// As mlp_block_forward() and mlp_block_backward(); saved.gate_up_TF2 has the rows of the experts. A rank
// without tokens takes part in the exchange of rows if y, or dx, has no rows; nothing is saved or read then.
void moe_block_forward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                       ConstTensorView residual_TD, const MlpSaved& saved, const MoeScratch& scratch,
                       TensorView y_TD);
void moe_block_backward(Ops& ops, const MoeBlockConfig& config, const MoeWeights& weights,
                        const MoeGrads& grads, WeightUpdate update, const MlpSaved& saved,
                        const MoeScratch& scratch, TensorView dx_TD);

}  // namespace tessera
