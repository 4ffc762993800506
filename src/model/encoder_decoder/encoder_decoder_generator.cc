#include "model/encoder_decoder/encoder_decoder_generator.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "model/allocate.h"
#include "model/blocks/residual_norm.h"
#include "model/encoder_decoder/encoder_decoder_model.h"

namespace tessera {
namespace {

// Keys and values of a layer of the decoder: of the target's tokens so far, and of the source's.
struct LayerCache {
  TensorView own;  // [capacity, 2 H E]
  TensorView of_source;
};

struct GeneratorBuffers {
  std::vector<LayerCache> caches;
  EncoderDecoderActivations source;  // of a pass over a source alone
  EncoderDecoderActivations token;   // over one token of a target

  void lay_out(const ModelConfig& config, DType dtype, int64_t source_tokens, int64_t capacity,
               const LoraLimits& lora, Arena& cache_arena, Arena& arena) {
    const int64_t width = 2 * config.num_attention_heads * config.head_dim;
    caches.clear();
    for (int64_t layer = config.encoder_decoder->num_encoder_layers; layer < config.num_hidden_layers;
         ++layer) {
      caches.push_back({allocate_tensor(cache_arena, dtype, {capacity, width}),
                        allocate_tensor(cache_arena, dtype, {capacity, width})});
    }
    const LogitsLimits whole_rows = {};
    const std::vector<KeptOutputs> kept(static_cast<size_t>(config.num_hidden_layers));
    source.lay_out(config, dtype, source_tokens, 1, kept, /*training=*/false, whole_rows, arena, arena, lora);
    token.lay_out(config, dtype, 1, 1, kept, /*training=*/false, whole_rows, arena, arena, lora);
  }
};

template <typename Model>
auto& encoder_decoder(Model& model) {
  using Wanted = std::conditional_t<std::is_const_v<Model>, const EncoderDecoderModel, EncoderDecoderModel>;
  auto* of_family = dynamic_cast<Wanted*>(&model);
  TESSERA_CHECK(of_family != nullptr, "not a model with an encoder and a decoder");
  return *of_family;
}

}  // namespace

struct EncoderDecoderGenerator::Impl {
  Impl(EncoderDecoderModel& of_model, int64_t most_tokens);

  void encode(std::span<const int32_t> ids);
  // Logits after one more token of the target.
  void decode(int32_t id);

  // Bytes of caches, buffers and workspace.
  static std::array<int64_t, 3> measure(const EncoderDecoderModel& model, int64_t capacity);

  EncoderDecoderModel& model;
  int64_t capacity;
  int64_t source_length = 0;
  int64_t length = 0;  // of the target, its start included
  DeviceBuffer cache_memory, memory, workspace;
  GeneratorBuffers buffers;
  std::vector<int32_t> encoder_buckets, decoder_buckets;
  std::vector<float> logits_V;
};

std::array<int64_t, 3> EncoderDecoderGenerator::Impl::measure(const EncoderDecoderModel& model,
                                                              int64_t capacity) {
  Arena caches = Arena::measuring(), arena = Arena::measuring();
  GeneratorBuffers buffers;
  buffers.lay_out(model.config(), model.dtype(), capacity, capacity, model.lora_limits(), caches, arena);
  return {caches.high_water_bytes(), arena.high_water_bytes(),
          model.ops().workspace_bytes(model.ops_limits({capacity, capacity, /*training=*/false}))};
}

int64_t EncoderDecoderGenerator::memory_bytes(const TrainableModel& model, int64_t capacity) {
  const auto [caches, buffers, workspace] = Impl::measure(encoder_decoder(model), capacity);
  return caches + buffers + workspace + model.config().vocab_size * dtype_bytes(DType::kF32);
}

EncoderDecoderGenerator::Impl::Impl(EncoderDecoderModel& of_model, int64_t most_tokens)
    : model(of_model), capacity(most_tokens) {
  TESSERA_CHECK(capacity > 0, "capacity {}", capacity);
  const auto [cache_bytes, buffer_bytes, workspace_bytes] = measure(model, capacity);
  cache_memory = model.device().allocate(cache_bytes);
  memory = model.device().allocate(buffer_bytes);
  workspace = model.device().allocate(workspace_bytes);
  encoder_buckets = model.buckets(true);
  decoder_buckets = model.buckets(false);
  logits_V.resize(static_cast<size_t>(model.config().vocab_size));
}

void EncoderDecoderGenerator::Impl::encode(std::span<const int32_t> ids) {
  Ops& ops = model.ops();
  const auto num_tokens = std::ssize(ids);
  Arena caches(cache_memory), arena(memory);
  buffers.lay_out(model.config(), model.dtype(), num_tokens, capacity, model.lora_limits(), caches, arena);
  ops.bind_workspace(workspace.span());
  model.refresh_packed_forms();
  const std::array<int32_t, 2> cu_seqlens = {0, static_cast<int32_t>(num_tokens)};
  const int64_t max_distance = model.stacks().relative_attention_max_distance;
  const PositionBias bias = {model.weights_.encoder_bias_BH, encoder_buckets, max_distance};
  SequenceInfo sequences;
  sequences.cu_seqlens = cu_seqlens;
  sequences.bias = &bias;
  const TensorView x_SD = buffers.source.encoder_x_SD;  // the input of every layer, too
  ops.embedding(ids, model.embedding_VD(), x_SD);
  StackLayerScratch scratch = buffers.source.scratch;
  ConstTensorView residual;
  for (int64_t layer = 0; layer < model.stacks().num_encoder_layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    const StackLayerSaved& saved = buffers.source.layers[i];
    attention_block_forward(ops, model.encoder_block_, model.weights_.layers[i].attention, sequences,
                            residual, saved.attention, scratch.attention, saved.mlp.x_TD);
    mlp_block_forward(ops, model.mlp_block_, model.weights_.layers[i].mlp, saved.attention.x_TD, saved.mlp,
                      scratch.mlp, x_SD);
    residual = saved.mlp.x_TD;
  }
  residual_norm(ops, x_SD, residual, model.weights_.encoder_norm_D, model.norm_eps(),
                buffers.source.memory_SD, buffers.source.memory_rstd_S);
  for (size_t i = 0; i < buffers.caches.size(); ++i) {
    const CrossAttentionWeights& cross =
        model.weights_.layers[static_cast<size_t>(model.stacks().num_encoder_layers) + i].cross;
    const TensorView kv_SK = buffers.caches[i].of_source.rows(0, num_tokens);
    ops.linear(buffers.source.memory_SD, cross.wkv_KD, /*bias_N=*/{}, kv_SK);
    lora_forward(ops, cross.lora_kv, buffers.source.memory_SD, scratch.cross.lora, kv_SK);
  }
  source_length = num_tokens;
}

void EncoderDecoderGenerator::Impl::decode(int32_t id) {
  Ops& ops = model.ops();
  ops.bind_workspace(workspace.span());
  model.refresh_packed_forms();
  const int64_t width = model.config().num_attention_heads * model.config().head_dim;
  const AttentionShape& heads = model.decoder_block_.shape;
  const std::array<int32_t, 2> cu_query = {0, 1}, cu_own = {0, static_cast<int32_t>(length + 1)},
                               cu_source = {0, static_cast<int32_t>(source_length)};
  const PositionBias bias = {model.weights_.decoder_bias_BH, decoder_buckets,
                             model.stacks().relative_attention_max_distance};
  const StackLayerScratch& scratch = buffers.token.scratch;
  const TensorView x_1D = buffers.token.final_x_UD;  // the input of every layer, too
  ops.embedding({&id, 1}, model.embedding_VD(), x_1D);
  ConstTensorView residual;
  for (size_t i = 0; i < buffers.caches.size(); ++i) {
    const size_t layer = static_cast<size_t>(model.stacks().num_encoder_layers) + i;
    const auto& [self, cross, mlp] = model.weights_.layers[layer];
    const StackLayerSaved& saved = buffers.token.layers[layer];

    residual_norm(ops, saved.attention.x_TD, residual, self.norm_D, model.norm_eps(),
                  scratch.attention.norm_TD, scratch.attention.statistics_T);
    const TensorView qkv_1Q = saved.attention.qkv_TQ;
    ops.linear(scratch.attention.norm_TD, self.wqkv_QD, /*bias_N=*/{}, qkv_1Q);
    lora_forward(ops, self.lora_qkv, scratch.attention.norm_TD, scratch.attention.lora, qkv_1Q);
    const int64_t head_bytes = width * dtype_bytes(model.dtype());
    const TensorView own = buffers.caches[i].own;
    std::copy_n(qkv_1Q.bytes() + head_bytes, 2 * head_bytes, own.bytes() + length * 2 * head_bytes);
    AttentionInputs inputs = {.q_rows = qkv_1Q,
                              .kv_rows = own.rows(0, length + 1),
                              .v_column = width,
                              .cu_queries = cu_query,
                              .cu_keys = cu_own,
                              .bias = &bias};
    ops.general_attention(inputs, heads, saved.attention.o_THE, saved.attention.lse_HT);
    ops.linear(saved.attention.o_THE, self.wo_DHE, /*bias_N=*/{}, saved.cross.x_UD);
    lora_forward(ops, self.lora_o, saved.attention.o_THE, scratch.attention.lora, saved.cross.x_UD);

    residual_norm(ops, saved.cross.x_UD, saved.attention.x_TD, cross.norm_D, model.norm_eps(),
                  scratch.cross.norm_UD, scratch.cross.rstd_U);
    ops.linear(scratch.cross.norm_UD, cross.wq_QD, /*bias_N=*/{}, saved.cross.q_UQ);
    lora_forward(ops, cross.lora_q, scratch.cross.norm_UD, scratch.cross.lora, saved.cross.q_UQ);
    inputs = {.q_rows = saved.cross.q_UQ,
              .kv_rows = buffers.caches[i].of_source.rows(0, source_length),
              .v_column = width,
              .cu_queries = cu_query,
              .cu_keys = cu_source,
              .causal = false};
    ops.general_attention(inputs, heads, saved.cross.o_UQ, saved.cross.lse_HU);
    ops.linear(saved.cross.o_UQ, cross.wo_DQ, /*bias_N=*/{}, saved.mlp.x_TD);
    lora_forward(ops, cross.lora_o, saved.cross.o_UQ, scratch.cross.lora, saved.mlp.x_TD);

    mlp_block_forward(ops, model.mlp_block_, mlp, saved.cross.x_UD, saved.mlp, scratch.mlp, x_1D);
    residual = saved.mlp.x_TD;
  }
  ++length;
  const LossHeadScratch& head = buffers.token.loss_scratch;
  residual_norm(ops, x_1D, residual, model.weights_.head.norm_D, model.norm_eps(), head.norm_TD, head.rstd_T);
  if (const float scale = model.head_config().output_scale; scale != 1)
    ops.scale(head.norm_TD, scale, head.norm_TD);
  const TensorView logits_1V(logits_V.data(), DType::kF32, {1, model.config().vocab_size});
  ops.linear(head.norm_TD, model.weights_.head.lm_head_VD, /*bias_N=*/{}, logits_1V);
}

EncoderDecoderGenerator::EncoderDecoderGenerator(TrainableModel& model, int64_t capacity)
    : impl_(std::make_unique<Impl>(encoder_decoder(model), capacity)) {}
EncoderDecoderGenerator::~EncoderDecoderGenerator() = default;

int64_t EncoderDecoderGenerator::length() const { return impl_->length; }
void EncoderDecoderGenerator::reset() { impl_->source_length = impl_->length = 0; }

std::span<const float> EncoderDecoderGenerator::feed(std::span<const int32_t> ids) {
  Impl& impl = *impl_;
  TESSERA_CHECK(!ids.empty(), "no tokens");
  for (const int32_t id : ids) {
    TESSERA_CHECK(0 <= id && id < impl.model.config().vocab_size, "token {}, vocabulary {}", id,
                  impl.model.config().vocab_size);
  }
  const bool is_source = impl.source_length == 0;
  const int64_t count = is_source ? std::ssize(ids) : impl.length + std::ssize(ids);
  if (count > impl.capacity)
    fail(ExitCode::kBadConfig, "the {} would have {} tokens, its cache holds {}; ask for fewer tokens",
         is_source ? "source" : "target", count, impl.capacity);
  if (is_source) {
    impl.encode(ids);
    impl.decode(impl.model.stacks().decoder_start_token_id);
  } else {
    for (const int32_t id : ids) impl.decode(id);
  }
  return impl.logits_V;
}

}  // namespace tessera
