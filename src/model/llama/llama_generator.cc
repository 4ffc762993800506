#include "model/llama/llama_generator.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/allocate.h"
#include "model/blocks/residual_norm.h"
#include "model/llama/llama_model.h"

namespace tessera {

struct LlamaGenerator::Impl {
  Impl(LlamaModel& of_model, int64_t max_positions, int64_t chunk);

  // Computes the last row of logits_V after these tokens of a text that has `text_length` so far, if
  // requested.
  void feed_chunk(std::span<const int32_t> ids, int64_t text_length, bool want_logits);

  LlamaModel* model;
  int64_t capacity;
  int64_t max_chunk;
  int64_t length = 0;

  DeviceBuffer cache_memory;
  DeviceBuffer saved_memory;
  DeviceBuffer working_memory;
  DeviceBuffer workspace;
  RopeTableBuffer rope, local_rope;
  std::vector<KeyValueCache> caches;  // per layer
  ActivationPolicy policy;
  Activations activations;
  std::vector<int32_t> table_rows;  // 0, 1, ... of the rotary embedding
  std::vector<float> logits_V;      // of the host
};

namespace {

std::vector<KeyValueCache> allocate_caches(Arena& arena, const ModelConfig& config, DType dtype,
                                           int64_t capacity) {
  const Shape shape = {capacity, config.num_key_value_heads * config.head_dim};
  std::vector<KeyValueCache> caches(static_cast<size_t>(config.num_hidden_layers));
  for (KeyValueCache& cache : caches) {
    cache.k = allocate_tensor(arena, dtype, shape);
    cache.v = allocate_tensor(arena, dtype, shape);
  }
  return caches;
}

// `Model` is const or not.
template <typename Model>
auto& llama(Model& model) {
  using Llama = std::conditional_t<std::is_const_v<Model>, const LlamaModel, LlamaModel>;
  auto* of_family = dynamic_cast<Llama*>(&model);
  if (of_family == nullptr) fail(ExitCode::kBadConfig, "text can be generated with Llama-family models only");
  return *of_family;
}

struct BufferSizes {
  int64_t caches = 0, saved = 0, working = 0, workspace = 0;
};

BufferSizes measure_buffers(const LlamaModel& model, int64_t capacity, int64_t max_chunk) {
  Arena caches = Arena::measuring();
  allocate_caches(caches, model.config(), model.dtype(), capacity);
  Arena saved = Arena::measuring();
  Arena working = Arena::measuring();
  Activations activations;
  const ActivationLimits limits = {max_chunk, capacity, /*training=*/false};
  activations.lay_out(model.config(), model.dtype(), max_chunk,
                      activation_policy(model.config(), model.dtype(), limits), saved, working,
                      model.lora_limits());
  const int64_t vocab_size = model.config().vocab_size;
  const LogitsPieces last_row = {1, vocab_size, vocab_size};
  return {caches.high_water_bytes(), saved.high_water_bytes(), working.high_water_bytes(),
          model.ops().workspace_bytes(model.ops_limits(limits, {&last_row, 1}))};
}

}  // namespace

LlamaGenerator::Impl::Impl(LlamaModel& of_model, int64_t max_positions, int64_t chunk)
    : model(&of_model), capacity(max_positions), max_chunk(std::min(chunk, max_positions)) {
  TESSERA_CHECK(capacity > 0 && max_chunk > 0, "capacity {}, chunks of {}", capacity, chunk);
  const ModelConfig& config = model->config();
  const BufferSizes sizes = measure_buffers(*model, capacity, max_chunk);
  Device& device = model->ops().device();
  cache_memory = device.allocate(sizes.caches);
  Arena cache_arena(cache_memory);
  caches = allocate_caches(cache_arena, config, model->dtype(), capacity);
  saved_memory = device.allocate(sizes.saved);
  working_memory = device.allocate(sizes.working);
  workspace = device.allocate(sizes.workspace);
  activations.reserve(config, max_chunk);
  policy = activation_policy(config, model->dtype(), {max_chunk, capacity, /*training=*/false});
  rope = RopeTableBuffer(config, capacity, device);
  if (has_local_rope(config)) local_rope = RopeTableBuffer(config, config.local_rope, capacity, device);
  table_rows.resize(static_cast<size_t>(capacity + position_offset(global_rope(config), capacity, capacity)));
  std::iota(table_rows.begin(), table_rows.end(), 0);
  logits_V.resize(static_cast<size_t>(config.vocab_size));
}

int64_t LlamaGenerator::memory_bytes(const TrainableModel& model, int64_t capacity, int64_t max_chunk) {
  const ModelConfig& config = model.config();
  const BufferSizes sizes = measure_buffers(llama(model), capacity, std::min(max_chunk, capacity));
  return sizes.caches + sizes.saved + sizes.working + sizes.workspace +
         RopeTableBuffer::size_bytes(config, capacity) +
         (has_local_rope(config) ? RopeTableBuffer::size_bytes(config, config.local_rope, capacity) : 0) +
         (capacity + position_offset(global_rope(config), capacity, capacity)) * dtype_bytes(DType::kI32) +
         config.vocab_size * dtype_bytes(DType::kF32);
}

void LlamaGenerator::Impl::feed_chunk(std::span<const int32_t> ids, int64_t text_length, bool want_logits) {
  Ops& ops = model->ops();
  const auto num_tokens = static_cast<int64_t>(ids.size());
  Arena saved(saved_memory);
  Arena working(working_memory);
  activations.lay_out(model->config(), model->dtype(), num_tokens, policy, saved, working,
                      model->lora_limits());
  ops.bind_workspace(workspace.span());
  // Keys of longrope that are in the cache stay as they are when the text outgrows the original length, as in
  // Transformers.
  const int64_t first_row = length + position_offset(global_rope(model->config()), text_length, capacity);
  const SequenceInfo sequences = {
      {},
      std::span<const int32_t>(table_rows).subspan(static_cast<size_t>(first_row), ids.size()),
      rope.table(),
      has_local_rope(model->config()) ? local_rope.table() : RopeTable()};

  model->refresh_packed_forms();
  const TensorView x_TD = activations.final_x_TD;  // the input of every layer too
  ops.embedding(ids, model->embedding_VD(), x_TD);
  if (const float factor = model->embedding_scale(); factor != 1) ops.scale(x_TD, factor, x_TD);
  ConstTensorView residual_TD;
  for (size_t i = 0; i < model->weights().layers.size(); ++i) {
    const LayerSaved& layer = activations.layers[i];
    decoder_layer_cached(ops, model->layer_config(i), model->weights().layers[i], sequences, residual_TD,
                         caches[i], length, layer, activations.layer_scratch, x_TD);
    residual_TD = layer.mlp.x_TD;
  }
  length += num_tokens;
  if (!want_logits) return;

  const LossHeadScratch& scratch = activations.loss_scratch;
  const TensorView norm_1D = scratch.norm_TD.rows(0, 1);
  const LossHeadConfig head = model->head_config();
  residual_norm(ops, x_TD.rows(num_tokens - 1, num_tokens), residual_TD.rows(num_tokens - 1, num_tokens),
                model->weights().head.norm_D, head.norm, norm_1D, scratch.rstd_T.rows(0, 1));
  if (head.output_scale != 1) ops.scale(norm_1D, head.output_scale, norm_1D);
  const int64_t vocab_size = model->config().vocab_size;
  const TensorView logits_1V = matrix_in(scratch.logits, 1, vocab_size);
  ops.linear(norm_1D, model->weights().head.lm_head_VD, /*bias_N=*/{}, logits_1V);
  if (head.softcap != 0) ops.soft_cap(logits_1V, head.softcap);
  copy(logits_1V, TensorView(logits_V.data(), DType::kF32, logits_1V.shape()));
}

LlamaGenerator::LlamaGenerator(TrainableModel& model, int64_t capacity, int64_t max_chunk)
    : impl_(std::make_unique<Impl>(llama(model), capacity, max_chunk)) {}
LlamaGenerator::~LlamaGenerator() = default;

int64_t LlamaGenerator::length() const { return impl_->length; }
void LlamaGenerator::reset() { impl_->length = 0; }

std::span<const float> LlamaGenerator::feed(std::span<const int32_t> ids) {
  Impl& impl = *impl_;
  const auto num_tokens = static_cast<int64_t>(ids.size());
  TESSERA_CHECK(!impl.model->embedding_VD().empty(), "no weights are bound");
  TESSERA_CHECK(num_tokens > 0, "no tokens");
  if (impl.length + num_tokens > impl.capacity) {
    fail(ExitCode::kBadConfig, "the sequence would have {} tokens, its cache holds {}; ask for fewer tokens",
         impl.length + num_tokens, impl.capacity);
  }
  for (const int32_t id : ids) {
    TESSERA_CHECK(0 <= id && id < impl.model->config().vocab_size, "token {}, vocabulary {}", id,
                  impl.model->config().vocab_size);
  }
  const int64_t text_length = impl.length + num_tokens;
  for (int64_t begin = 0; begin < num_tokens; begin += impl.max_chunk) {
    const int64_t count = std::min(impl.max_chunk, num_tokens - begin);
    impl.feed_chunk(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), text_length,
                    begin + count == num_tokens);
  }
  return impl.logits_V;
}

}  // namespace tessera
