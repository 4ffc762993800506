#include "model/encoder/encoder_model.h"

#include <algorithm>

#include "base/error.h"
#include "model/allocate.h"
#include "model/attention_shape.h"

namespace tessera {
EncoderModel::EncoderModel(const ModelConfig& config, DType dtype, Ops& ops)
    : TrainableModel(config, dtype, ops) {
  TESSERA_CHECK(config.encoder.has_value(), "{} layers", config.num_hidden_layers);
  if (ops.device().own_memory())
    fail(ExitCode::kBadConfig, "{}: encoders are computed on processors alone", ops.device().name());
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    block_configs_.push_back({.shape = attention_shape(config, layer),
                              .norm = norm_eps(),
                              .rope = encoder().has_positions ? LayerRope::kNone : LayerRope::kGlobal,
                              .causal = false});
  }
  mlp_config_ = mlp_block_config(config);
  list_tensors(encoder_tensors(config, weights_, grads_));
  for (const Parameter& parameter : weight_layout().parameters()) {
    if (parameter.kind == ParameterKind::kMatrix)
      matrix_elements_ += static_cast<double>(parameter.num_elements);
  }
}

ParameterLayout EncoderModel::parameter_layout(const ModelConfig& config) {
  EncoderWeights weights;
  EncoderGrads grads;
  return trained_layout(config, encoder_tensors(config, weights, grads));
}

ModelFlops EncoderModel::flops(std::span<const int32_t> cu_seqlens, int64_t /*num_sources*/,
                               int64_t num_targets) const {
  const auto num_tokens = static_cast<double>(cu_seqlens.empty() ? 0 : cu_seqlens.back());
  const auto D = static_cast<double>(config().hidden_size);
  double pairs = 0;  // over all layers
  for (const AttentionBlockConfig& block : block_configs_) {
    AttentionInputs inputs;
    inputs.cu_queries = inputs.cu_keys = cu_seqlens;
    inputs.causal = false;
    pairs += attention_pairs(inputs, block.shape.sliding_window);
  }
  ModelFlops flops;
  flops.layers = 2 * num_tokens * matrix_elements_;
  flops.attention = 4 * D * pairs;
  flops.is_frozen = is_adapted();
  if (flops.is_frozen) flops.adapters = 2 * num_tokens * static_cast<double>(layout().num_parameters());
  flops.lm_head = 2 * static_cast<double>(num_targets) * D * (static_cast<double>(config().vocab_size) + D);
  return flops;
}

void EncoderModel::lay_out(std::span<const KeptOutputs> kept, const ActivationLimits& limits,
                           int64_t num_tokens, Arena& saved, Arena& working,
                           EncoderActivations& activations) const {
  const Shape stream = {num_tokens, config().hidden_size}, stats = {num_tokens, 2};
  const auto is_missing = [](const TensorView& view) { return view.shape().rank() == 0; };
  activations.layers.resize(kept.size());
  activations.embedding_TD = allocate_tensor(saved, dtype(), stream);
  activations.embedding_stats_T2 = allocate_tensor(saved, DType::kF32, stats);
  EncoderLayerSaved shared;
  bool shares_gate_up = false;
  for (size_t i = 0; i < kept.size(); ++i) {
    EncoderLayerSaved own;
    EncoderLayerSaved& qkv = kept[i].qkv ? own : shared;
    if (is_missing(qkv.attention.qkv_TQ)) allocate_qkv(saved, config(), dtype(), num_tokens, qkv.attention);
    EncoderLayerSaved& output = kept[i].attention ? own : shared;
    if (is_missing(output.attention.o_THE))
      allocate_attention_output(saved, config(), dtype(), num_tokens, output.attention);
    EncoderLayerSaved& sum = kept[i].stream ? own : shared;
    if (is_missing(sum.sum_TD)) sum.sum_TD = allocate_tensor(saved, dtype(), stream);
    // Backward has the statistics of the norm of x or of that sum anew.
    if (is_missing(shared.stats_T2)) shared.stats_T2 = allocate_tensor(saved, DType::kF32, stats);
    if (i == 0 || limits.training) shared.attention.x_TD = allocate_tensor(saved, dtype(), stream);
    // BERT's last sum is not computed again; ModernBERT's backward has the norm's statistics anew.
    if (i == 0 || (limits.training && !encoder().norm_first)) {
      shared.mlp.x_TD = allocate_tensor(saved, dtype(), stream);
      shared.mlp_stats_T2 = allocate_tensor(saved, DType::kF32, stats);
    }
    EncoderLayerSaved& layer = activations.layers[i];
    layer = {};
    layer.attention.x_TD = shared.attention.x_TD;
    layer.attention.qkv_TQ = qkv.attention.qkv_TQ;
    layer.attention.o_THE = output.attention.o_THE;
    layer.attention.lse_HT = output.attention.lse_HT;
    layer.sum_TD = sum.sum_TD;
    layer.stats_T2 = shared.stats_T2;
    layer.mlp.x_TD = shared.mlp.x_TD;
    layer.mlp_stats_T2 = shared.mlp_stats_T2;
    if (kept[i].gate_up) layer.mlp.gate_up_TF2 = allocate_gate_up(saved, config(), dtype(), num_tokens);
    shares_gate_up |= !kept[i].gate_up;
  }
  activations.final_x_TD = limits.training ? allocate_tensor(saved, dtype(), stream) : shared.attention.x_TD;
  activations.head_x_TD =
      encoder().norm_first ? allocate_tensor(saved, dtype(), stream) : activations.final_x_TD;
  activations.final_stats_T2 = allocate_tensor(saved, DType::kF32, stats);

  activations.dx_TD = limits.training ? allocate_tensor(working, dtype(), stream) : TensorView();
  const Arena::Mark mark = working.mark();
  const LoraScratch lora =
      allocate_lora_scratch(working, lora_limits(), dtype(), num_tokens, limits.training);
  const Arena::Mark blocks = working.mark();
  activations.attention = allocate_attention_scratch(working, config(), dtype(), num_tokens, limits.training);
  working.release(blocks);
  activations.mlp = allocate_mlp_scratch(working, config(), dtype(), num_tokens, shares_gate_up);
  working.release(mark);
  activations.attention.lora = activations.mlp.lora = lora;
  activations.loss = allocate_loss_head_scratch(working, config(), dtype(), logits_limits(device()),
                                                num_tokens, limits.training);
  working.release(mark);
}

ActivationBytes EncoderModel::arena_bytes(const ActivationLimits& limits) const {
  Arena saved = Arena::measuring(), working = Arena::measuring();
  EncoderActivations activations;
  lay_out(kept_outputs(config(), dtype(), limits), limits, limits.max_tokens, saved, working, activations);
  return {saved.high_water_bytes(), working.high_water_bytes()};
}

void EncoderModel::lay_out(const PackedBatch& batch, Arena& saved, Arena& working) {
  lay_out(kept_, limits(), batch.num_tokens(), saved, working, activations_);
  activations_.attention.lora.dropout = activations_.mlp.lora.dropout = adapter_dropout();
  sequences_ = {};
  sequences_.cu_seqlens = batch.cu_seqlens;
  sequences_.positions = batch.positions;
  position_ids_.clear();
  // XLM-RoBERTa counts the tokens that are no padding, which has the place before the first one's.
  const auto offset = static_cast<int32_t>(encoder().position_offset);
  int32_t num_padding = 0;  // so far in the row
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    const int32_t position = batch.positions[t];
    if (position == 0) num_padding = 0;
    const bool is_padding = offset > 0 && batch.input_ids[t] == config().pad_token_id;
    num_padding += is_padding ? 1 : 0;
    position_ids_.push_back(is_padding ? offset - 1 : offset + position - num_padding);
  }
  type_ids_.assign(batch.positions.size(), 0);
  for (size_t t = 0; t < batch.token_types.size(); ++t) {
    const int32_t type = batch.token_types[t];
    TESSERA_CHECK(0 <= type && type < std::max<int64_t>(1, encoder().type_vocab_size), "token type {} of {}",
                  type, encoder().type_vocab_size);
    type_ids_[t] = type;
  }
}

OpsLimits EncoderModel::ops_limits(const ActivationLimits& limits) const {
  OpsLimits result = ops_limits_of_layers(limits);
  result.attention = block_configs_.front().shape;
  result.attention.sliding_window = 0;
  result.general_attention = true;
  const int64_t vocab_size = config().vocab_size, D = config().hidden_size;
  const int64_t packed_rows = limits.pack_weights ? vocab_size : 0;
  result.linears.push_back({limits.max_tokens, {D, D, limits.pack_weights ? D : 0, 0}});
  result.linears.push_back({limits.max_tokens, {D, D, 0, 0}});
  for (const LogitsPieces& pieces :
       all_logits_pieces(limits.max_tokens, vocab_size, logits_limits(device()))) {
    result.max_logits_rows = std::max(result.max_logits_rows, pieces.rows);
    for (int64_t row = 0; row < vocab_size; row += pieces.columns) {
      const int64_t columns = std::min(pieces.columns, vocab_size - row);
      result.linears.push_back({pieces.rows, {columns, D, packed_rows, row}});
    }
  }
  return result;
}

int64_t EncoderModel::table_bytes(const ActivationLimits& limits) const {
  return encoder().has_positions ? 0 : 2 * RopeTableBuffer::size_bytes(config(), limits.max_sequence_length);
}

int64_t EncoderModel::reserve_tables(const ActivationLimits& limits) {
  const auto capacity = static_cast<size_t>(limits.max_tokens);
  activations_.target_rows.reserve(limits.max_tokens, /*with_dropout=*/false);
  position_ids_.reserve(capacity);
  type_ids_.reserve(capacity);
  kept_ = kept_outputs(config(), dtype(), limits);
  if (encoder().has_positions) return 0;
  rope_ = RopeTableBuffer(config(), limits.max_sequence_length, device());
  local_rope_ =
      RopeTableBuffer(config(), Rope{encoder().local_rope_theta, {}}, limits.max_sequence_length, device());
  return rope_.size_bytes() + local_rope_.size_bytes();
}

SequenceInfo EncoderModel::sequences_of(int64_t layer) const {
  SequenceInfo sequences = sequences_;
  if (!encoder().has_positions) sequences.rope = is_windowed(layer) ? local_rope_.table() : rope_.table();
  sequences.of_probabilities = dropout_at(config().dropout.attention, DropoutPlace::kAttention, layer);
  sequences.of_output = dropout_at(config().dropout.attention_output, DropoutPlace::kAttentionOutput, layer);
  return sequences;
}

MlpScratch EncoderModel::mlp_scratch_of(int64_t layer) const {
  MlpScratch scratch = activations_.mlp;
  scratch.of_hidden = dropout_at(config().dropout.mlp_hidden, DropoutPlace::kMlpHidden, layer);
  scratch.of_output = dropout_at(config().dropout.mlp_output, DropoutPlace::kMlpOutput, layer);
  return scratch;
}

void EncoderModel::compute_embedding(const PackedBatch& batch) {
  ops().embedding(batch.input_ids, weights_.head.lm_head_VD.w_NK, activations_.embedding_TD);
}

void EncoderModel::finish_embedding(const PackedBatch& /*batch*/) {
  const TensorView x_TD = activations_.layers[0].attention.x_TD, sum_TD = activations_.embedding_TD;
  if (!weights_.type_KD.empty()) {
    ops().embedding(type_ids_, weights_.type_KD, x_TD);
    ops().add(sum_TD, x_TD);
  }
  if (!weights_.position_PD.empty()) {
    ops().embedding(position_ids_, weights_.position_PD, x_TD);
    ops().add(sum_TD, x_TD);
  }
  ops().layernorm(sum_TD, weights_.embedding_norm_D, weights_.embedding_norm_b_D, norm_eps(), x_TD,
                  activations_.embedding_stats_T2);
  drop_in_place(ops(), dropout_at(config().dropout.embedding, DropoutPlace::kEmbedding, 0), x_TD);
  show(-1, "embedding", x_TD);
}

TensorView EncoderModel::output_of(int64_t layer) {
  const auto next = static_cast<size_t>(layer + 1);
  return next < activations_.layers.size() ? activations_.layers[next].attention.x_TD
                                           : activations_.final_x_TD;
}

void EncoderModel::compute_sum(int64_t layer, const KeptOutputs& kept) {
  const auto i = static_cast<size_t>(layer);
  const EncoderLayerSaved& saved = activations_.layers[i];
  const EncoderLayerTensors<ConstTensorView, LinearWeight>& weights = weights_.layers[i];
  ConstTensorView input_TD = saved.attention.x_TD;
  if (encoder().norm_first && !weights.attention.norm_D.empty() && !kept.qkv) {
    ops().layernorm(input_TD, weights.attention.norm_D, weights.attention_norm_b_D, norm_eps(),
                    activations_.attention.norm_TD, saved.stats_T2);
    input_TD = activations_.attention.norm_TD;
  }
  self_attention_recompute(ops(), block_configs_[i], weights.attention, sequences_of(layer), kept, input_TD,
                           saved.attention, activations_.attention.lora, saved.sum_TD);
  if (!kept.stream) ops().add(saved.sum_TD, saved.attention.x_TD);
}

void EncoderModel::recompute_layer(int64_t layer) {
  const bool is_last = layer + 1 == config().num_hidden_layers;
  compute_sum(layer, is_last ? KeptOutputs::of_last_layer() : kept_[static_cast<size_t>(layer)]);
}

void EncoderModel::compute_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  const EncoderLayerSaved& saved = activations_.layers[i];
  const EncoderLayerTensors<ConstTensorView, LinearWeight>& weights = weights_.layers[i];
  const TensorView norm_TD = activations_.mlp.norm_TD, y_TD = output_of(layer);
  compute_sum(layer, /*kept=*/{});
  show(layer, "attention", saved.sum_TD);
  if (encoder().norm_first) {
    ops().layernorm(saved.sum_TD, weights.mlp.norm_D, weights.mlp_norm_b_D, norm_eps(), norm_TD,
                    saved.mlp_stats_T2);
    mlp_forward(ops(), mlp_config_, weights.mlp, norm_TD, saved.mlp, mlp_scratch_of(layer), y_TD);
    show(layer, "mlp", y_TD);
    ops().add(y_TD, saved.sum_TD);
    return;
  }
  ops().layernorm(saved.sum_TD, weights.attention.norm_D, weights.attention_norm_b_D, norm_eps(), norm_TD,
                  saved.stats_T2);
  mlp_forward(ops(), mlp_config_, weights.mlp, norm_TD, saved.mlp, mlp_scratch_of(layer), saved.mlp.x_TD);
  show(layer, "mlp", saved.mlp.x_TD);
  ops().add(saved.mlp.x_TD, norm_TD);
  ops().layernorm(saved.mlp.x_TD, weights.mlp.norm_D, weights.mlp_norm_b_D, norm_eps(), y_TD,
                  saved.mlp_stats_T2);
}

TensorView EncoderModel::head_input() {
  if (encoder().norm_first) {
    ops().layernorm(activations_.final_x_TD, weights_.final_norm_D, weights_.final_norm_b_D, norm_eps(),
                    activations_.head_x_TD, activations_.final_stats_T2);
  }
  return activations_.head_x_TD;
}

LossSums EncoderModel::compute_loss(const PackedBatch& batch, float label_smoothing,
                                    std::span<LossSums> by_sequence) {
  return loss_head_forward(ops(), head_config(), weights_.head, batch.targets, label_smoothing, head_input(),
                           activations_.loss, activations_.target_rows, {batch.cu_seqlens, by_sequence});
}

LossSums EncoderModel::compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                    WeightUpdate update) {
  const LossSums sums = loss_head_forward_backward(
      ops(), head_config(), weights_.head, grads_.head, update, batch.targets, label_smoothing, grad_scale,
      head_input(), activations_.loss, activations_.target_rows, activations_.dx_TD);
  // Without targets all gradients of the embedding's group are zeroed before its backward.
  update_of_head_ = sums.num_targets > 0 ? update.mode : Update::kAdd;
  if (encoder().norm_first && sums.num_targets > 0) {
    ops().layernorm_backward(activations_.dx_TD, activations_.final_x_TD, weights_.final_norm_D,
                             activations_.final_stats_T2, activations_.dx_TD, Update::kOverwrite,
                             grads_.final_norm_D, grads_.final_norm_b_D, update.mode);
  }
  return sums;
}

void EncoderModel::compute_layer_backward(int64_t layer, WeightUpdate update) {
  encoder().norm_first ? backward_norm_first(layer, update) : backward_norm_after(layer, update);
}

void EncoderModel::backward_norm_first(int64_t layer, WeightUpdate update) {
  const auto i = static_cast<size_t>(layer);
  const EncoderLayerSaved& saved = activations_.layers[i];
  const EncoderLayerTensors<ConstTensorView, LinearWeight>& weights = weights_.layers[i];
  const EncoderLayerTensors<TensorView>& grads = grads_.layers[i];
  const TensorView dx_TD = activations_.dx_TD, norm_TD = activations_.mlp.norm_TD;
  ops().layernorm(saved.sum_TD, weights.mlp.norm_D, weights.mlp_norm_b_D, norm_eps(), norm_TD,
                  saved.mlp_stats_T2);
  mlp_backward(ops(), mlp_config_, weights.mlp, grads.mlp, update, dx_TD, norm_TD, saved.mlp,
               mlp_scratch_of(layer));
  ops().layernorm_backward(norm_TD, saved.sum_TD, weights.mlp.norm_D, saved.mlp_stats_T2, dx_TD, Update::kAdd,
                           grads.mlp.norm_D, grads.mlp_norm_b_D, update.mode);

  const TensorView x_TD = saved.attention.x_TD, input_TD = activations_.attention.norm_TD;
  const auto backward = [&](TensorView input) {
    self_attention_backward(ops(), block_configs_[i], weights.attention, grads.attention, update,
                            sequences_of(layer), dx_TD, input, saved.attention, activations_.attention);
  };
  if (weights.attention.norm_D.empty()) {
    backward(x_TD);  // which then holds its gradient: nothing reads it any more
    ops().add(dx_TD, x_TD);
    return;
  }
  ops().layernorm(x_TD, weights.attention.norm_D, weights.attention_norm_b_D, norm_eps(), input_TD,
                  saved.stats_T2);
  backward(input_TD);
  ops().layernorm_backward(input_TD, x_TD, weights.attention.norm_D, saved.stats_T2, dx_TD, Update::kAdd,
                           grads.attention.norm_D, grads.attention_norm_b_D, update.mode);
}

void EncoderModel::backward_norm_after(int64_t layer, WeightUpdate update) {
  const auto i = static_cast<size_t>(layer);
  const EncoderLayerSaved& saved = activations_.layers[i];
  const EncoderLayerTensors<ConstTensorView, LinearWeight>& weights = weights_.layers[i];
  const EncoderLayerTensors<TensorView>& grads = grads_.layers[i];
  const TensorView dx_TD = activations_.dx_TD, norm_TD = activations_.mlp.norm_TD;
  // Each sum passes its gradient to both terms.
  ops().layernorm_backward(dx_TD, saved.mlp.x_TD, weights.mlp.norm_D, saved.mlp_stats_T2, dx_TD,
                           Update::kOverwrite, grads.mlp.norm_D, grads.mlp_norm_b_D, update.mode);
  ops().layernorm(saved.sum_TD, weights.attention.norm_D, weights.attention_norm_b_D, norm_eps(), norm_TD,
                  saved.stats_T2);
  mlp_backward(ops(), mlp_config_, weights.mlp, grads.mlp, update, dx_TD, norm_TD, saved.mlp,
               mlp_scratch_of(layer));
  ops().add(dx_TD, norm_TD);
  ops().layernorm_backward(dx_TD, saved.sum_TD, weights.attention.norm_D, saved.stats_T2, dx_TD,
                           Update::kOverwrite, grads.attention.norm_D, grads.attention_norm_b_D, update.mode);
  const TensorView x_TD = saved.attention.x_TD;
  self_attention_backward(ops(), block_configs_[i], weights.attention, grads.attention, update,
                          sequences_of(layer), dx_TD, x_TD, saved.attention, activations_.attention);
  ops().add(dx_TD, x_TD);
}

void EncoderModel::compute_embedding_backward(const PackedBatch& batch, Update /*update*/) {
  const TensorView dx_TD = activations_.dx_TD;
  drop_in_place(ops(), dropout_at(config().dropout.embedding, DropoutPlace::kEmbedding, 0), dx_TD);
  ops().layernorm_backward(dx_TD, activations_.embedding_TD, weights_.embedding_norm_D,
                           activations_.embedding_stats_T2, dx_TD, Update::kOverwrite,
                           grads_.embedding_norm_D, grads_.embedding_norm_b_D, update_of_head_);
  const auto padding_id = static_cast<int32_t>(config().pad_token_id.value_or(kNoPaddingId));
  ops().embedding_backward(batch.input_ids, dx_TD, padding_id,
                           grads_.head.lm_head_VD);  // added to the head's
  for (const auto& [ids, table_D] :
       {std::pair(&position_ids_, grads_.position_PD), {&type_ids_, grads_.type_KD}}) {
    if (table_D.empty()) continue;
    if (update_of_head_ == Update::kOverwrite) ops().zero(table_D);
    // XLM-RoBERTa's table of positions has a row for padding tokens, which is not trained.
    const bool has_padding = ids == &position_ids_ && encoder().position_offset > 0;
    ops().embedding_backward(*ids, dx_TD,
                             has_padding ? static_cast<int32_t>(encoder().position_offset - 1) : kNoPaddingId,
                             table_D);
  }
}

}  // namespace tessera
