#include "model/llama/llama_model.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {
LlamaModel::LlamaModel(const ModelConfig& config, DType dtype, Ops& ops)
    : TrainableModel(config, dtype, ops) {
  TESSERA_CHECK(config.num_hidden_layers > 0 &&
                    config.num_attention_heads % config.num_key_value_heads == 0 && config.head_dim % 2 == 0,
                "{} layers, {} heads, {} key-value heads, head_dim {}", config.num_hidden_layers,
                config.num_attention_heads, config.num_key_value_heads, config.head_dim);
  TESSERA_CHECK(config.sliding_window.empty() ||
                    static_cast<int64_t>(config.sliding_window.size()) == config.num_hidden_layers,
                "{} sliding windows, {} layers", config.sliding_window.size(), config.num_hidden_layers);
  if (config.experts && ops.device().own_memory())
    fail(ExitCode::kBadConfig, "device {}: mixtures of experts run on processors only: use device cpu",
         ops.device().name());
  if (config.dropout.any() && ops.device().own_memory())
    fail(ExitCode::kBadConfig,
         "device {}: the dropout of config.json (attention_dropout {}) runs on processors only: use device "
         "cpu",
         ops.device().name(), config.dropout.attention);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    layer_configs_.push_back(tessera::layer_config(config, layer));
  }
  list_tensors(llama_tensors(config, weights_, grads_));
  for (const Parameter& parameter : weight_layout().parameters()) {
    if (parameter.kind != ParameterKind::kMatrix && parameter.kind != ParameterKind::kRouter) continue;
    matrix_elements_ += parameter.token_share * static_cast<double>(parameter.num_elements);
  }
  for (const Parameter& parameter : layout().parameters()) {
    if (is_adapted())
      adapter_elements_ += parameter.token_share * static_cast<double>(parameter.num_elements);
  }
}

ParameterLayout LlamaModel::parameter_layout(const ModelConfig& config) {
  LlamaWeights weights;
  LlamaGrads grads;
  return trained_layout(config, llama_tensors(config, weights, grads));
}

ModelFlops LlamaModel::flops(std::span<const int32_t> cu_seqlens, int64_t /*num_sources*/,
                             int64_t num_targets) const {
  const auto num_tokens = static_cast<double>(cu_seqlens.empty() ? 0 : cu_seqlens.back());
  double pairs = 0;  // over all layers
  for (const LayerConfig& layer : layer_configs_) {
    for (size_t i = 1; i < cu_seqlens.size(); ++i) {
      pairs += causal_pairs(cu_seqlens[i] - cu_seqlens[i - 1], layer.attention.shape.sliding_window);
    }
  }
  ModelFlops flops;
  flops.layers = 2 * num_tokens * matrix_elements_;
  flops.attention = 4 * static_cast<double>(config().num_attention_heads * config().head_dim) * pairs;
  flops.is_frozen = is_adapted();
  if (flops.is_frozen) flops.adapters = 2 * num_tokens * adapter_elements_;
  flops.lm_head = 2 * static_cast<double>(num_targets) * static_cast<double>(config().vocab_size) *
                  static_cast<double>(config().hidden_size);
  return flops;
}

ActivationPolicy LlamaModel::policy_of(const ActivationLimits& limits) const {
  ActivationPolicy policy = activation_policy(config(), dtype(), limits);
  policy.logits = logits_limits(device());
  return policy;
}

ActivationBytes LlamaModel::arena_bytes(const ActivationLimits& limits) const {
  Arena saved = Arena::measuring();
  Arena working = Arena::measuring();
  Activations activations;
  activations.lay_out(config(), dtype(), limits.max_tokens, policy_of(limits), saved, working, lora_limits());
  return {saved.high_water_bytes(), working.high_water_bytes()};
}

void LlamaModel::lay_out(const PackedBatch& batch, Arena& saved, Arena& working) {
  activations_.lay_out(config(), dtype(), batch.num_tokens(), policy_, saved, working, lora_limits());
  if (offloaded_) offloaded_->begin();
  LayerScratch& scratch = activations_.layer_scratch;
  scratch.attention.lora.dropout = scratch.mlp.lora.dropout = scratch.moe.lora.dropout = adapter_dropout();
  sequences_ = {batch.cu_seqlens, table_rows(batch), rope_.table()};
  if (has_local_rope(config())) sequences_.local_rope = local_rope_.table();
  if (!config().experts) return;
  scratch.moe.exchange = expert_exchange();
  RouterState& router = activations_.router;
  router.sums_load = has_backward() && config().experts->router_aux_loss_coef > 0;
  router.load.reset(config().experts->num_experts);
  router.balance_gradient.clear();
}

// The loss of the balance between experts is one of the micro-batch, which the other tokens' losses are not:
// grad_scale does not apply to it.
double LlamaModel::add_balance_loss(float grad_scale) {
  RouterState& router = activations_.router;
  const double coefficient = config().experts->router_aux_loss_coef;
  router.balance_gradient.resize(router.load.count.size());
  router.load.balance_gradient(coefficient, router.balance_gradient);
  return coefficient * router.load.balance_loss() / static_cast<double>(grad_scale);
}

float LlamaModel::embedding_scale() const {
  const auto factor = static_cast<float>(config().embedding_scale);
  const bool is_rounded = config().rounds_embedding_scale && dtype() == DType::kBF16;
  return is_rounded ? to_float(to_bf16(factor)) : factor;
}

LossHeadConfig LlamaModel::head_config() const {
  return {.norm = NormConfig(config()),
          .output_scale = static_cast<float>(config().logits_scale),
          .softcap = static_cast<float>(config().logits_softcap)};
}

std::span<const int32_t> LlamaModel::table_rows(const PackedBatch& batch) {
  const Rope rope = global_rope(config());
  if (rope.scaling.type != RopeType::kLongRope) return batch.positions;
  const int64_t num_positions = limits().max_sequence_length;
  if (batch.is_slice && position_offset(rope, num_positions, num_positions) > 0)
    fail(ExitCode::kBadConfig,
         "context_parallel_size: rows of up to {} tokens are longer than the original {} of longrope, whose "
         "frequencies depend on the length of the row: each rank needs whole rows",
         num_positions, rope.scaling.original_max_position_embeddings);
  table_rows_ = batch.positions;
  for (size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) {
    const int32_t begin = batch.cu_seqlens[n], end = batch.cu_seqlens[n + 1];
    const auto offset = static_cast<int32_t>(position_offset(rope, end - begin, num_positions));
    for (int32_t t = begin; t < end; ++t) table_rows_[static_cast<size_t>(t)] += offset;
  }
  return table_rows_;
}

OpsLimits LlamaModel::ops_limits(const ActivationLimits& limits) const {
  return ops_limits(limits,
                    all_logits_pieces(limits.max_tokens, config().vocab_size, logits_limits(device())));
}

OpsLimits LlamaModel::ops_limits(const ActivationLimits& limits, std::span<const LogitsPieces> logits) const {
  OpsLimits result = ops_limits_of_layers(limits);
  // All rows that arrive may be of one expert.
  for (LinearLimits& linear : result.linears)
    linear.max_rows = std::max(linear.max_rows, policy_of(limits).arriving_rows);
  result.attention = layer_configs_.front().attention.shape;
  result.attention.sliding_window = 0;  // the widest window a layer may have
  if (config().qk_norm_whole) result.head_norm_width = config().num_attention_heads * config().head_dim;
  result.general_attention = config().attention_sinks || (limits.training && config().dropout.attention > 0);
  const int64_t vocab_size = config().vocab_size;
  const int64_t packed_rows = limits.pack_weights ? vocab_size : 0;
  for (const LogitsPieces& pieces : logits) {
    result.max_logits_rows = std::max(result.max_logits_rows, pieces.rows);
    for (int64_t row = 0; row < vocab_size; row += pieces.columns) {
      const int64_t columns = std::min(pieces.columns, vocab_size - row);
      result.linears.push_back({pieces.rows, {columns, config().hidden_size, packed_rows, row}});
    }
  }
  return result;
}

int64_t LlamaModel::slot_bytes(const ActivationLimits& limits) const {
  return OffloadedInputs::slot_bytes(limits.max_tokens * config().hidden_size * dtype_bytes(dtype()));
}

int64_t LlamaModel::num_recomputed_attentions(const ActivationLimits& limits) const {
  return tessera::num_recomputed_attentions(config(), dtype(), limits);
}

int64_t LlamaModel::offloaded_bytes(const ActivationLimits& limits) const {
  if (!limits.offload_inputs) return 0;
  return OffloadedInputs::file_bytes(config().num_hidden_layers, slot_bytes(limits));
}

int64_t LlamaModel::table_bytes(const ActivationLimits& limits) const {
  const int64_t num_positions = limits.max_sequence_length;
  const int64_t of_local = has_local_rope(config())
                               ? RopeTableBuffer::size_bytes(config(), config().local_rope, num_positions)
                               : 0;
  return RopeTableBuffer::size_bytes(config(), num_positions) + of_local;
}

int64_t LlamaModel::reserve_tables(const ActivationLimits& limits) {
  rope_ = RopeTableBuffer(config(), limits.max_sequence_length, device());
  local_rope_ = {};
  if (has_local_rope(config()))
    local_rope_ = RopeTableBuffer(config(), config().local_rope, limits.max_sequence_length, device());
  if (config().rope_scaling.type == RopeType::kLongRope)
    table_rows_.reserve(static_cast<size_t>(limits.max_tokens));
  policy_ = policy_of(limits);
  activations_.reserve(config(), limits.max_tokens);
  offloaded_.reset();
  if (offloaded_bytes(limits) > 0) {
    TESSERA_CHECK(!input_file().empty() && &device() == &host_device(), "offload to '{}', model on {}",
                  input_file().native(), device().name());
    offloaded_.emplace(input_file(), config().num_hidden_layers, slot_bytes(limits), input_file_settings());
  }
  return rope_.size_bytes() + local_rope_.size_bytes();
}

void LlamaModel::compute_embedding(const PackedBatch& batch) {
  const TensorView x_TD = activations_.layers.front().attention.x_TD;
  ops().embedding(batch.input_ids, embedding_VD(), x_TD);
  if (config().rounds_embedding_scale) scale_embedding();
}

void LlamaModel::finish_embedding(const PackedBatch& /*batch*/) {
  if (!config().rounds_embedding_scale) scale_embedding();
  show(-1, "embedding", activations_.layers.front().attention.x_TD);
}

// In Gemma a part of the embedding, to whose output noise is added; in others what follows it.
void LlamaModel::scale_embedding() {
  const TensorView x_TD = activations_.layers.front().attention.x_TD;
  if (const float factor = embedding_scale(); factor != 1) ops().scale(x_TD, factor, x_TD);
}

SequenceInfo LlamaModel::sequences_of(int64_t layer) const {
  SequenceInfo sequences = sequences_;
  const DropoutRates& rates = config().dropout;
  sequences.of_probabilities = dropout_at(rates.attention, DropoutPlace::kAttention, layer);
  sequences.of_output = dropout_at(rates.attention_output, DropoutPlace::kAttentionOutput, layer);
  return sequences;
}

LayerScratch LlamaModel::scratch_of(int64_t layer) const {
  LayerScratch scratch = activations_.layer_scratch;
  scratch.mlp.of_output = dropout_at(config().dropout.mlp_output, DropoutPlace::kMlpOutput, layer);
  return scratch;
}

void LlamaModel::compute_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  const LayerSaved& saved = activations_.layers[i];
  const bool is_last = i + 1 == activations_.layers.size();
  const TensorView y_TD = is_last ? activations_.final_x_TD : activations_.layers[i + 1].attention.x_TD;
  // Before the first layer the embedding is the whole stream.
  const ConstTensorView residual_TD = i == 0 ? TensorView() : activations_.layers[i - 1].mlp.x_TD;
  if (offloaded_) offloaded_->before_forward(layer);
  decoder_layer_forward(ops(), layer_configs_[i], weights_.layers[i], sequences_of(layer), residual_TD, saved,
                        scratch_of(layer), y_TD);
  show(layer, "attention", saved.mlp.x_TD);
  show(layer, "mlp", y_TD);
  if (is_last) ops().add(y_TD, saved.mlp.x_TD);
  if (offloaded_ && has_backward()) offloaded_->after_forward(layer, saved.attention.x_TD);
}

void LlamaModel::help_with_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  if (!config().has_experts(layer) || expert_exchange() == nullptr) return;
  moe_block_forward(ops(), layer_configs_[i].moe, weights_.layers[i].moe, /*residual_TD=*/{}, /*saved=*/{},
                    scratch_of(layer).moe, /*y_TD=*/no_tokens());
}

void LlamaModel::help_with_layer_backward(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  if (!config().has_experts(layer) || expert_exchange() == nullptr) return;
  moe_block_backward(ops(), layer_configs_[i].moe, weights_.layers[i].moe, grads_.layers[i].moe,
                     {Update::kAdd, nullptr}, /*saved=*/{}, scratch_of(layer).moe, /*dx_TD=*/no_tokens());
}

TensorView LlamaModel::no_tokens() const { return activations_.final_x_TD.rows(0, 0); }

LossSums LlamaModel::compute_loss(const PackedBatch& batch, float label_smoothing,
                                  std::span<LossSums> by_sequence) {
  return loss_head_forward(ops(), head_config(), weights_.head, batch.targets, label_smoothing,
                           activations_.final_x_TD, activations_.loss_scratch, activations_.target_rows,
                           {batch.cu_seqlens, by_sequence});
}

LossSums LlamaModel::compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                  WeightUpdate update) {
  LossSums sums = loss_head_forward_backward(
      ops(), head_config(), weights_.head, grads_.head, update, batch.targets, label_smoothing, grad_scale,
      activations_.final_x_TD, activations_.loss_scratch, activations_.target_rows, activations_.dx_TD);
  if (activations_.router.sums_load && sums.num_targets > 0) sums.loss_sum += add_balance_loss(grad_scale);
  return sums;
}

void LlamaModel::recompute_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  if (offloaded_) offloaded_->before_backward(layer);
  // The last layer's outputs are still there.
  const bool is_last = i + 1 == activations_.layers.size();
  const KeptOutputs kept = is_last ? KeptOutputs::of_last_layer() : policy_.layers[i];
  decoder_layer_recompute(ops(), layer_configs_[i], weights_.layers[i], sequences_of(layer), kept,
                          activations_.layers[i], scratch_of(layer));
}

void LlamaModel::compute_layer_backward(int64_t layer, WeightUpdate update) {
  const auto i = static_cast<size_t>(layer);
  decoder_layer_backward(ops(), layer_configs_[i], weights_.layers[i], grads_.layers[i], update,
                         sequences_of(layer), activations_.layers[i], scratch_of(layer), activations_.dx_TD);
  if (offloaded_) offloaded_->after_backward(layer, activations_.layers[i].attention.x_TD);
}

void LlamaModel::compute_embedding_backward(const PackedBatch& batch, Update update) {
  const TensorView table_VD = config().tie_word_embeddings ? grads_.head.lm_head_VD : grads_.embedding_VD;
  // Rows of tokens that do not occur get no gradient.
  if (update == Update::kOverwrite) ops().zero(table_VD);
  const auto padding_id = static_cast<int32_t>(config().pad_token_id.value_or(kNoPaddingId));
  const TensorView dx_TD = activations_.dx_TD;
  if (const float factor = embedding_scale(); factor != 1) ops().scale(dx_TD, factor, dx_TD);
  ops().embedding_backward(batch.input_ids, dx_TD, padding_id, table_VD);
}

void LlamaModel::forward_logits(const PackedBatch& batch, TensorView logits_TV) {
  const Shape expected = {batch.num_tokens(), config().vocab_size};
  TESSERA_CHECK(logits_TV.shape() == expected && logits_TV.dtype() == DType::kF32, "logits are {} {}",
                dtype_name(logits_TV.dtype()), logits_TV.shape().to_string());
  TESSERA_CHECK(&logits_TV.device() == &device(), "logits on {}, model on {}", logits_TV.device().name(),
                device().name());
  begin(batch);
  forward_embedding(batch);
  forward_layers();
  const LossHeadScratch& scratch = activations_.loss_scratch;
  open_head_weights();
  const LossHeadConfig head = head_config();
  norm_forward(ops(), head.norm, activations_.final_x_TD, weights_.head.norm_D, scratch.norm_TD,
               scratch.rstd_T);
  if (head.output_scale != 1) ops().scale(scratch.norm_TD, head.output_scale, scratch.norm_TD);
  TESSERA_CHECK(scratch.pieces.columns == config().vocab_size, "{} tokens", batch.num_tokens());
  for (int64_t row = 0; row < batch.num_tokens(); row += scratch.pieces.rows) {
    const int64_t end = std::min(row + scratch.pieces.rows, batch.num_tokens());
    ops().linear(scratch.norm_TD.rows(row, end), weights_.head.lm_head_VD, /*bias_N=*/{},
                 logits_TV.rows(row, end));
  }
  if (head.softcap != 0) ops().soft_cap(logits_TV, head.softcap);
  close_head_weights();
}

}  // namespace tessera
