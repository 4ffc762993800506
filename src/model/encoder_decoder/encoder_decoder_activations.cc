#include "model/encoder_decoder/encoder_decoder_activations.h"

#include <algorithm>

#include "model/allocate.h"

namespace tessera {
namespace {

StackLayerScratch allocate_stack_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t S,
                                         int64_t U, bool training, bool with_gate_up,
                                         const LoraLimits& lora) {
  const int64_t longest = std::max(S, U);
  StackLayerScratch scratch;
  const LoraScratch of_adapters = allocate_lora_scratch(arena, lora, dtype, longest, training);
  const Arena::Mark mark = arena.mark();
  int64_t end = arena.used_bytes();
  const auto finish = [&] {
    end = std::max(end, arena.used_bytes());
    arena.release(mark);
  };
  scratch.attention = allocate_attention_scratch(arena, config, dtype, longest, training);
  finish();
  scratch.cross = allocate_cross_attention_scratch(arena, config, dtype, S, U, training);
  finish();
  scratch.mlp = allocate_mlp_scratch(arena, config, dtype, longest, with_gate_up);
  finish();
  arena.release({end});
  scratch.attention.lora = scratch.cross.lora = scratch.cross.lora_of_sources = scratch.mlp.lora =
      of_adapters;
  return scratch;
}

}  // namespace

void EncoderDecoderActivations::reserve(const ModelConfig& config, int64_t max_tokens) {
  layers.reserve(static_cast<size_t>(config.num_hidden_layers));
  target_rows.reserve(max_tokens, config.dropout.stack_output > 0);
}

// Layers [begin, end), of the decoder if begin > 0. Without training the inputs of all layers share first_x.
void EncoderDecoderActivations::lay_out_stack(const ModelConfig& config, DType dtype, size_t begin,
                                              size_t end, int64_t num_source_tokens, int64_t num_tokens,
                                              std::span<const KeptOutputs> kept, bool training,
                                              TensorView first_x, Arena& saved) {
  const Shape stream_shape = {num_tokens, config.hidden_size};
  const bool is_decoder = begin > 0;
  const auto is_missing = [](const TensorView& view) { return view.shape().rank() == 0; };
  StackLayerSaved shared;
  for (size_t i = begin; i < end; ++i) {
    StackLayerSaved own;
    StackLayerSaved& qkv = kept[i].qkv ? own : shared;
    if (is_missing(qkv.attention.qkv_TQ)) {
      allocate_qkv(saved, config, dtype, num_tokens, qkv.attention);
      if (is_decoder) allocate_cross_qkv(saved, config, dtype, num_source_tokens, num_tokens, qkv.cross);
    }
    StackLayerSaved& output = kept[i].attention ? own : shared;
    if (is_missing(output.attention.o_THE)) {
      allocate_attention_output(saved, config, dtype, num_tokens, output.attention);
      if (is_decoder) allocate_cross_output(saved, config, dtype, num_tokens, output.cross);
    }
    StackLayerSaved& stream = kept[i].stream ? own : shared;
    if (is_missing(stream.mlp.x_TD)) {
      if (is_decoder) stream.cross.x_UD = allocate_tensor(saved, dtype, stream_shape);
      stream.mlp.x_TD = allocate_tensor(saved, dtype, stream_shape);
    }
    StackLayerSaved& layer = layers[i];
    layer = {};
    layer.attention.x_TD = i == begin || !training ? first_x : allocate_tensor(saved, dtype, stream_shape);
    layer.attention.qkv_TQ = qkv.attention.qkv_TQ;
    layer.attention.o_THE = output.attention.o_THE;
    layer.attention.lse_HT = output.attention.lse_HT;
    layer.cross = {stream.cross.x_UD, qkv.cross.q_UQ, qkv.cross.kv_SK, output.cross.o_UQ,
                   output.cross.lse_HU};
    layer.mlp.x_TD = stream.mlp.x_TD;
    if (kept[i].gate_up) layer.mlp.gate_up_TF2 = allocate_gate_up(saved, config, dtype, num_tokens);
  }
}

void EncoderDecoderActivations::lay_out(const ModelConfig& config, DType dtype, int64_t num_source_tokens,
                                        int64_t num_target_tokens, std::span<const KeptOutputs> kept,
                                        bool training, const LogitsLimits& logits, Arena& saved,
                                        Arena& working, const LoraLimits& lora) {
  const int64_t S = num_source_tokens, U = num_target_tokens, D = config.hidden_size;
  const Shape table_shape = {config.encoder_decoder->relative_attention_num_buckets,
                             config.num_attention_heads};
  const auto num_encoder_layers = static_cast<size_t>(config.encoder_decoder->num_encoder_layers);
  layers.resize(static_cast<size_t>(config.num_hidden_layers));
  embedding_TD = allocate_tensor(saved, dtype, {S + U, D});
  encoder_bias_BH = allocate_tensor(saved, dtype, table_shape);
  decoder_bias_BH = allocate_tensor(saved, dtype, table_shape);
  lay_out_stack(config, dtype, 0, num_encoder_layers, S, S, kept, training, embedding_TD.rows(0, S), saved);
  lay_out_stack(config, dtype, num_encoder_layers, layers.size(), S, U, kept, training,
                embedding_TD.rows(S, S + U), saved);
  encoder_x_SD = training ? allocate_tensor(saved, dtype, {S, D}) : embedding_TD.rows(0, S);
  memory_SD = allocate_tensor(saved, dtype, {S, D});
  memory_rstd_S = allocate_tensor(saved, DType::kF32, {S});
  final_x_UD = training ? allocate_tensor(saved, dtype, {U, D}) : embedding_TD.rows(S, S + U);

  dx_TD = dmemory_SD = encoder_dbias_BH = decoder_dbias_BH = {};
  if (training) {
    dx_TD = allocate_tensor(working, dtype, {S + U, D});
    dmemory_SD = allocate_tensor(working, dtype, {S, D});
    encoder_dbias_BH = allocate_tensor(working, DType::kF32, table_shape);
    decoder_dbias_BH = allocate_tensor(working, DType::kF32, table_shape);
  }
  const Arena::Mark mark = working.mark();
  scratch = allocate_stack_scratch(
      working, config, dtype, S, U, training,
      std::ranges::any_of(kept, [](const KeptOutputs& of) { return !of.gate_up; }), lora);
  working.release(mark);
  loss_scratch = allocate_loss_head_scratch(working, config, dtype, logits, U, training);
  working.release(mark);
}

}  // namespace tessera
