#include "model/encoder_decoder/encoder_decoder_model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/encoder_decoder/position_buckets.h"

namespace tessera {
namespace {

AttentionShape t5_heads(const ModelConfig& config) {
  return {config.num_attention_heads, config.num_key_value_heads, config.head_dim, /*sliding_window=*/0,
          /*scale=*/1};
}

}  // namespace

EncoderDecoderModel::EncoderDecoderModel(const ModelConfig& config, DType dtype, Ops& ops)
    : TrainableModel(config, dtype, ops) {
  TESSERA_CHECK(config.encoder_decoder.has_value(), "{} layers", config.num_hidden_layers);
  if (ops.device().own_memory())
    fail(ExitCode::kBadConfig, "{}: models with an encoder and a decoder are computed on processors alone",
         ops.device().name());
  const AttentionShape heads = t5_heads(config);
  encoder_block_ = {.shape = heads, .norm = norm_eps(), .rope = LayerRope::kNone, .causal = false};
  decoder_block_ = {.shape = heads, .norm = norm_eps(), .rope = LayerRope::kNone};
  cross_block_ = {heads, norm_eps()};
  mlp_block_ = mlp_block_config(config);
  list_tensors(encoder_decoder_tensors(config, weights_, grads_));
  for (const Parameter& parameter : weight_layout().parameters()) {
    if (parameter.kind != ParameterKind::kMatrix) continue;
    const bool reads_memory = parameter.name.find("EncDecAttention.k") != parameter.name.npos ||
                              parameter.name.find("EncDecAttention.v") != parameter.name.npos;
    (is_encoder_layer(parameter.group - 1) ? encoder_matrix_elements_
     : reads_memory                        ? memory_matrix_elements_
                    : decoder_matrix_elements_) += static_cast<double>(parameter.num_elements);
  }
}

ParameterLayout EncoderDecoderModel::parameter_layout(const ModelConfig& config) {
  EncoderDecoderWeights weights;
  EncoderDecoderGrads grads;
  return trained_layout(config, encoder_decoder_tensors(config, weights, grads));
}

LossHeadConfig EncoderDecoderModel::head_config() const {
  const double scale =
      stacks().scale_decoder_outputs ? 1 / std::sqrt(static_cast<double>(config().hidden_size)) : 1;
  return {norm_eps(), static_cast<float>(scale)};
}

ModelFlops EncoderDecoderModel::flops(std::span<const int32_t> cu_seqlens, int64_t num_sources,
                                      int64_t num_targets) const {
  double source_tokens = 0, target_tokens = 0, encoder_pairs = 0, decoder_pairs = 0;
  for (int64_t n = 0; n < num_sources; ++n) {
    const auto length = [&](int64_t sequence) {
      return static_cast<double>(cu_seqlens[static_cast<size_t>(sequence + 1)] -
                                 cu_seqlens[static_cast<size_t>(sequence)]);
    };
    const double source = length(n), target = length(num_sources + n);
    source_tokens += source;
    target_tokens += target;
    encoder_pairs += source * source;
    decoder_pairs += target * (target + 1) / 2 + source * target;
  }
  const auto encoder_layers = static_cast<double>(stacks().num_encoder_layers);
  const double decoder_layers = static_cast<double>(num_layers()) - encoder_layers;
  ModelFlops flops;
  flops.layers = 2 * (source_tokens * (encoder_matrix_elements_ + memory_matrix_elements_) +
                      target_tokens * decoder_matrix_elements_);
  flops.attention = 4 * static_cast<double>(config().num_attention_heads * config().head_dim) *
                    (encoder_layers * encoder_pairs + decoder_layers * decoder_pairs);
  flops.is_frozen = is_adapted();
  // Adapters of either stack take about half of the tokens each.
  if (flops.is_frozen)
    flops.adapters = (source_tokens + target_tokens) * static_cast<double>(layout().num_parameters());
  flops.lm_head = 2 * static_cast<double>(num_targets) * static_cast<double>(config().vocab_size) *
                  static_cast<double>(config().hidden_size);
  return flops;
}

void EncoderDecoderModel::lay_out(std::span<const KeptOutputs> kept, bool training, int64_t num_source_tokens,
                                  int64_t num_target_tokens, Arena& saved, Arena& working,
                                  EncoderDecoderActivations& activations) const {
  activations.lay_out(config(), dtype(), num_source_tokens, num_target_tokens, kept, training,
                      logits_limits(device()), saved, working, lora_limits());
}

// All bytes are linear in the numbers of tokens, but for the rounding of every tensor to the alignment of
// arenas: a batch of any mixture of sources and targets needs no more than the larger one of the ends, where
// kMargin more tokens of either kind, at least 4 bytes each, outweigh the rounding.
ActivationBytes EncoderDecoderModel::arena_bytes(const ActivationLimits& limits) const {
  constexpr int64_t kMargin = 64;
  const std::vector<KeptOutputs> kept = kept_outputs(config(), dtype(), limits);
  ActivationBytes bytes;
  for (const auto& [sources, targets] :
       {std::pair(limits.max_tokens + kMargin, kMargin), std::pair(kMargin, limits.max_tokens + kMargin)}) {
    Arena saved = Arena::measuring(), working = Arena::measuring();
    EncoderDecoderActivations activations;
    lay_out(kept, limits.training, sources, targets, saved, working, activations);
    bytes.saved_bytes = std::max(bytes.saved_bytes, saved.high_water_bytes());
    bytes.working_bytes = std::max(bytes.working_bytes, working.high_water_bytes());
  }
  return bytes;
}

void EncoderDecoderModel::lay_out(const PackedBatch& batch, Arena& saved, Arena& working) {
  TESSERA_CHECK(batch.num_sources > 0 && batch.num_sources == batch.num_rows(), "{} sources, {} targets",
                batch.num_sources, batch.num_rows());
  const int64_t num_source_tokens = batch.num_source_tokens();
  lay_out(kept_, limits().training, num_source_tokens, batch.num_tokens() - num_source_tokens, saved, working,
          activations_);
  const auto count = static_cast<size_t>(batch.num_sources);
  cu_sources_ = std::span(batch.cu_seqlens).first(count + 1);
  cu_targets_.clear();
  for (const int32_t start : std::span(batch.cu_seqlens).subspan(count))
    cu_targets_.push_back(start - static_cast<int32_t>(num_source_tokens));
  encoder_bias_ = {activations_.encoder_bias_BH, encoder_buckets_, stacks().relative_attention_max_distance};
  decoder_bias_ = {activations_.decoder_bias_BH, decoder_buckets_, stacks().relative_attention_max_distance};
  if (const Dropout* dropout = adapter_dropout()) {
    source_dropout_ = dropout->rows(0, num_source_tokens);
    target_dropout_ = dropout->rows(num_source_tokens, batch.num_tokens());
  }
}

OpsLimits EncoderDecoderModel::ops_limits(const ActivationLimits& limits) const {
  OpsLimits result = ops_limits_of_layers(limits);
  result.attention = t5_heads(config());
  result.general_attention = true;
  result.position_buckets = stacks().relative_attention_num_buckets;
  const int64_t vocab_size = config().vocab_size;
  const int64_t packed_rows = limits.pack_weights ? vocab_size : 0;
  for (const LogitsPieces& pieces :
       all_logits_pieces(limits.max_tokens, vocab_size, logits_limits(device()))) {
    result.max_logits_rows = std::max(result.max_logits_rows, pieces.rows);
    for (int64_t row = 0; row < vocab_size; row += pieces.columns) {
      const int64_t columns = std::min(pieces.columns, vocab_size - row);
      result.linears.push_back({pieces.rows, {columns, config().hidden_size, packed_rows, row}});
    }
  }
  return result;
}

std::vector<int32_t> EncoderDecoderModel::buckets(bool both_directions) const {
  return position_buckets(stacks().relative_attention_num_buckets, stacks().relative_attention_max_distance,
                          both_directions);
}

int64_t EncoderDecoderModel::reserve_tables(const ActivationLimits& limits) {
  encoder_buckets_ = buckets(true);
  decoder_buckets_ = buckets(false);
  kept_ = kept_outputs(config(), dtype(), limits);
  activations_.reserve(config(), limits.max_tokens);
  cu_targets_.reserve(static_cast<size_t>(limits.max_tokens + 1));
  return 0;  // a few hundred bytes
}

void EncoderDecoderModel::compute_embedding(const PackedBatch& batch) {
  ops().embedding(batch.input_ids, embedding_VD(), activations_.embedding_TD);
}

void EncoderDecoderModel::finish_embedding(const PackedBatch& /*batch*/) {
  drop_in_place(ops(), dropout_at(config().dropout.embedding, DropoutPlace::kEmbedding, 0),
                activations_.embedding_TD);
  show(-1, "embedding", activations_.embedding_TD);
}

Dropout EncoderDecoderModel::stack_dropout(double rate, DropoutPlace place, int64_t layer) const {
  const Dropout of_all = dropout_at(rate, place, layer);
  if (!of_all.drops()) return {};
  return is_encoder_layer(layer) ? of_all.rows(0, cu_sources_.back())
                                 : of_all.rows(cu_sources_.back(), std::ssize(of_all.tokens));
}

TensorView EncoderDecoderModel::output_of(int64_t layer) {
  if (!is_last_of_stack(layer)) return activations_.layers[static_cast<size_t>(layer + 1)].attention.x_TD;
  return is_encoder_layer(layer) ? activations_.encoder_x_SD : activations_.final_x_UD;
}

SequenceInfo EncoderDecoderModel::sequences_of(int64_t layer) const {
  const bool is_encoder = is_encoder_layer(layer);
  SequenceInfo sequences;
  sequences.cu_seqlens = is_encoder ? cu_sources_ : std::span<const int32_t>(cu_targets_);
  sequences.bias = is_encoder ? &encoder_bias_ : &decoder_bias_;
  sequences.of_probabilities = stack_dropout(config().dropout.attention, DropoutPlace::kAttention, layer);
  sequences.of_output =
      stack_dropout(config().dropout.attention_output, DropoutPlace::kAttentionOutput, layer);
  return sequences;
}

CrossSequences EncoderDecoderModel::cross_sequences_of(int64_t layer) const {
  return {cu_targets_, cu_sources_,
          stack_dropout(config().dropout.attention, DropoutPlace::kCrossAttention, layer),
          stack_dropout(config().dropout.attention_output, DropoutPlace::kCrossAttentionOutput, layer)};
}

// The scratch with views of as many rows as the stack has tokens, and its tokens' dropout.
StackLayerScratch EncoderDecoderModel::scratch_of(int64_t layer) const {
  const bool is_encoder = is_encoder_layer(layer);
  const int64_t count = is_encoder ? cu_sources_.back() : cu_targets_.back();
  StackLayerScratch scratch = activations_.scratch;
  const auto cut = [count](TensorView& view) {
    if (view.shape().rank() > 0) view = view.rows(0, count);
  };
  for (TensorView* view : {&scratch.attention.norm_TD, &scratch.attention.statistics_T,
                           &scratch.attention.do_THE, &scratch.attention.dqkv_TQ,
                           &scratch.attention.ddropped_TD, &scratch.mlp.norm_TD, &scratch.mlp.statistics_T})
    cut(*view);
  scratch.mlp.of_hidden = stack_dropout(config().dropout.mlp_hidden, DropoutPlace::kMlpHidden, layer);
  scratch.mlp.of_output = stack_dropout(config().dropout.mlp_output, DropoutPlace::kMlpOutput, layer);
  if (adapter_dropout() != nullptr) {
    const Dropout* const own = is_encoder ? &source_dropout_ : &target_dropout_;
    scratch.attention.lora.dropout = scratch.cross.lora.dropout = scratch.mlp.lora.dropout = own;
    scratch.cross.lora_of_sources.dropout = &source_dropout_;
  }
  return scratch;
}

void EncoderDecoderModel::compute_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  const bool is_encoder = is_encoder_layer(layer);
  const StackLayerSaved& saved = activations_.layers[i];
  const StackLayerScratch scratch = scratch_of(layer);
  if (is_first_of_stack(layer)) {
    const TensorView table_BH = is_encoder ? activations_.encoder_bias_BH : activations_.decoder_bias_BH;
    ops().zero(table_BH);  // a copy, by operations alone
    ops().add(table_BH, is_encoder ? weights_.encoder_bias_BH : weights_.decoder_bias_BH);
  }
  const ConstTensorView residual =
      is_first_of_stack(layer) ? TensorView() : activations_.layers[i - 1].mlp.x_TD;
  const TensorView after_attention = is_encoder ? saved.mlp.x_TD : saved.cross.x_UD;
  attention_block_forward(ops(), is_encoder ? encoder_block_ : decoder_block_, weights_.layers[i].attention,
                          sequences_of(layer), residual, saved.attention, scratch.attention, after_attention);
  ConstTensorView bypassed = saved.attention.x_TD;
  if (!is_encoder) {
    cross_attention_forward(ops(), cross_block_, weights_.layers[i].cross, cross_sequences_of(layer),
                            activations_.memory_SD, bypassed, saved.cross, scratch.cross, saved.mlp.x_TD);
    bypassed = saved.cross.x_UD;
  }
  const TensorView y = output_of(layer);
  mlp_block_forward(ops(), mlp_block_, weights_.layers[i].mlp, bypassed, saved.mlp, scratch.mlp, y);
  show(layer, "attention", saved.mlp.x_TD);
  show(layer, "mlp", y);
  if (!is_last_of_stack(layer)) return;
  ops().add(y, saved.mlp.x_TD);
  if (is_encoder) {
    ops().rmsnorm(y, weights_.encoder_norm_D, norm_eps(), activations_.memory_SD, activations_.memory_rstd_S);
    drop_in_place(ops(), stack_dropout(config().dropout.stack_output, DropoutPlace::kStackOutput, layer),
                  activations_.memory_SD);
  }
}

LossSums EncoderDecoderModel::compute_loss(const PackedBatch& batch, float label_smoothing,
                                           std::span<LossSums> by_sequence) {
  return loss_head_forward(ops(), head_config(), weights_.head, targets_of(batch), label_smoothing,
                           activations_.final_x_UD, activations_.loss_scratch, activations_.target_rows,
                           {cu_targets_, by_sequence});
}

LossSums EncoderDecoderModel::compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                           WeightUpdate update) {
  LossHeadConfig head = head_config();
  head.of_norm = stack_dropout(config().dropout.stack_output, DropoutPlace::kStackOutput, num_layers() - 1);
  return loss_head_forward_backward(ops(), head, weights_.head, grads_.head, update, targets_of(batch),
                                    label_smoothing, grad_scale, activations_.final_x_UD,
                                    activations_.loss_scratch, activations_.target_rows, dx_of_targets());
}

void EncoderDecoderModel::recompute_layer(int64_t layer) {
  const auto i = static_cast<size_t>(layer);
  const bool is_encoder = is_encoder_layer(layer);
  const StackLayerSaved& saved = activations_.layers[i];
  const StackLayerScratch scratch = scratch_of(layer);
  const KeptOutputs kept = is_last_of_stack(layer) ? KeptOutputs::of_last_layer() : kept_[i];
  attention_block_recompute(ops(), is_encoder ? encoder_block_ : decoder_block_, weights_.layers[i].attention,
                            sequences_of(layer), kept, saved.attention, scratch.attention,
                            is_encoder ? saved.mlp.x_TD : saved.cross.x_UD);
  if (is_encoder) return;
  cross_attention_recompute(ops(), cross_block_, weights_.layers[i].cross, cross_sequences_of(layer),
                            activations_.memory_SD, kept, saved.cross, scratch.cross, saved.mlp.x_TD);
}

void EncoderDecoderModel::compute_layer_backward(int64_t layer, WeightUpdate update) {
  const auto i = static_cast<size_t>(layer);
  const bool is_encoder = is_encoder_layer(layer);
  const StackLayerSaved& saved = activations_.layers[i];
  const StackLayerScratch scratch = scratch_of(layer);
  const TensorView dx = is_encoder ? dx_of_sources() : dx_of_targets();
  if (is_encoder && is_last_of_stack(layer)) {
    drop_in_place(ops(), stack_dropout(config().dropout.stack_output, DropoutPlace::kStackOutput, layer),
                  activations_.dmemory_SD);
    ops().rmsnorm_backward(activations_.dmemory_SD, activations_.encoder_x_SD, weights_.encoder_norm_D,
                           activations_.memory_rstd_S, dx, Update::kOverwrite, grads_.encoder_norm_D,
                           update.mode);
  }
  mlp_block_backward(ops(), mlp_block_, weights_.layers[i].mlp, grads_.layers[i].mlp, update, saved.mlp,
                     scratch.mlp, dx);
  if (!is_encoder) {
    const Update memory_update = is_last_of_stack(layer) ? Update::kOverwrite : Update::kAdd;
    cross_attention_backward(ops(), cross_block_, weights_.layers[i].cross, grads_.layers[i].cross, update,
                             cross_sequences_of(layer), activations_.memory_SD, saved.cross, scratch.cross,
                             dx, activations_.dmemory_SD, memory_update);
  }
  SequenceInfo sequences = sequences_of(layer);
  const TensorView gradient = is_encoder ? grads_.encoder_bias_BH : grads_.decoder_bias_BH;
  if (!is_adapted()) {
    sequences.dbias_BH = is_encoder ? activations_.encoder_dbias_BH : activations_.decoder_dbias_BH;
    sequences.dbias_update = is_last_of_stack(layer) ? Update::kOverwrite : Update::kAdd;
  }
  attention_block_backward(ops(), is_encoder ? encoder_block_ : decoder_block_, weights_.layers[i].attention,
                           grads_.layers[i].attention, update, sequences, saved.attention, scratch.attention,
                           dx);
  if (!is_first_of_stack(layer) || is_adapted()) return;
  if (update.mode == Update::kOverwrite) ops().zero(gradient);
  ops().add(gradient, sequences.dbias_BH);
}

void EncoderDecoderModel::compute_embedding_backward(const PackedBatch& batch, Update update) {
  const TensorView table_VD = config().tie_word_embeddings ? grads_.head.lm_head_VD : grads_.embedding_VD;
  // Rows of tokens that do not occur get no gradient; the padding token, which starts the targets, does.
  if (update == Update::kOverwrite) ops().zero(table_VD);
  drop_in_place(ops(), dropout_at(config().dropout.embedding, DropoutPlace::kEmbedding, 0),
                activations_.dx_TD);
  ops().embedding_backward(batch.input_ids, activations_.dx_TD, kNoPaddingId, table_VD);
}

void EncoderDecoderModel::forward_logits(const PackedBatch& batch, TensorView logits_UV) {
  begin(batch);
  forward_embedding(batch);
  forward_layers();
  const LossHeadScratch& scratch = activations_.loss_scratch;
  const int64_t count = cu_targets_.back();
  TESSERA_CHECK(logits_UV.shape() == (Shape{count, config().vocab_size}) &&
                    scratch.pieces.columns == config().vocab_size && scratch.pieces.rows >= count,
                "logits are {}, of {} tokens", logits_UV.shape().to_string(), count);
  open_head_weights();
  ops().rmsnorm(activations_.final_x_UD, weights_.head.norm_D, norm_eps(), scratch.norm_TD, scratch.rstd_T);
  if (const float scale = head_config().output_scale; scale != 1)
    ops().scale(scratch.norm_TD, scale, scratch.norm_TD);
  ops().linear(scratch.norm_TD, weights_.head.lm_head_VD, /*bias_N=*/{}, logits_UV);
  close_head_weights();
}

}  // namespace tessera
