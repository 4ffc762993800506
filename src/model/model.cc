#include "model/model.h"

#include <algorithm>
#include <utility>

#include "model/model_impl.h"
#include "model/residual_norm.h"

namespace tessera {

ActivationMode activation_mode(const ActivationLimits& limits) {
  if (!limits.training) return ActivationMode::kForwardOnly;
  return limits.gradient_checkpointing ? ActivationMode::kKeepInputs : ActivationMode::kKeepAll;
}

namespace {

void check_batch(const PackedBatch& batch, const ActivationLimits& limits, int64_t vocab_size) {
  const int64_t num_tokens = batch.num_tokens();
  TESSERA_CHECK(0 < num_tokens && num_tokens <= limits.max_tokens, "{} tokens, reserved for 1 to {}",
                num_tokens, limits.max_tokens);
  TESSERA_CHECK(
      batch.positions.size() == batch.input_ids.size() && batch.targets.size() == batch.input_ids.size(),
      "{} ids, {} positions, {} targets", batch.input_ids.size(), batch.positions.size(),
      batch.targets.size());
  for (size_t t = 0; t < batch.input_ids.size(); ++t) {
    const int32_t id = batch.input_ids[t];
    const int32_t target = batch.targets[t];
    const int32_t position = batch.positions[t];
    TESSERA_CHECK(0 <= id && id < vocab_size, "token {} is {}, vocabulary {}", t, id, vocab_size);
    TESSERA_CHECK((0 <= target && target < vocab_size) || target == kIgnoredLabel,
                  "target {} is {}, vocabulary {}", t, target, vocab_size);
    TESSERA_CHECK(0 <= position && position < limits.max_sequence_length,
                  "position {} is {}, reserved for {}", t, position, limits.max_sequence_length);
  }
  const std::vector<int32_t>& starts = batch.cu_seqlens;
  TESSERA_CHECK(starts.size() >= 2 && starts.front() == 0 && starts.back() == num_tokens,
                "cu_seqlens do not span the {} tokens", num_tokens);
  for (size_t i = 1; i < starts.size(); ++i) {
    const int64_t length = starts[i] - starts[i - 1];
    TESSERA_CHECK(0 <= length && length <= limits.max_sequence_length,
                  "sequence {} has {} tokens, reserved for {}", i - 1, length, limits.max_sequence_length);
  }
}

void check_is_on(const Device& device, ConstTensorView view) {
  TESSERA_CHECK(view.empty() || &view.device() == &device, "a tensor of device {} for a model on {}",
                view.device().name(), device.name());
}

// Bytes that Activations::lay_out takes from each of its two arenas.
std::pair<int64_t, int64_t> measure_activations(const ModelConfig& config, DType dtype,
                                                const ActivationLimits& limits) {
  Arena saved = Arena::measuring();
  Arena working = Arena::measuring();
  Activations activations;
  activations.lay_out(config, dtype, limits.max_tokens, activation_mode(limits), saved, working);
  return {saved.high_water_bytes(), working.high_water_bytes()};
}

}  // namespace

Model::Impl::Impl(const ModelConfig& model_config, DType model_dtype, Ops& model_ops)
    : config(model_config), dtype(model_dtype), ops(&model_ops), layout(model_config) {
  TESSERA_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "a model in {}", dtype_name(dtype));
  TESSERA_CHECK(config.num_hidden_layers > 0 &&
                    config.num_attention_heads % config.num_key_value_heads == 0 && config.head_dim % 2 == 0,
                "{} layers, {} heads, {} key-value heads, head_dim {}", config.num_hidden_layers,
                config.num_attention_heads, config.num_key_value_heads, config.head_dim);
  TESSERA_CHECK(config.sliding_window.empty() ||
                    static_cast<int64_t>(config.sliding_window.size()) == config.num_hidden_layers,
                "{} sliding windows, {} layers", config.sliding_window.size(), config.num_hidden_layers);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    block_configs.push_back(attention_block_config(config, layer));
  }
  layers.resize(static_cast<size_t>(config.num_hidden_layers));
  layer_grads.resize(layers.size());
  group_weights.resize(layout.groups().size());
  group_gradients.resize(layout.groups().size());
}

void Model::Impl::bind_parameters(TensorView flat_weights, TensorView flat_gradients) {
  TESSERA_CHECK(flat_weights.dtype() == dtype && flat_weights.num_elements() == layout.num_elements(),
                "weights of {} {}, expected {} {}", flat_weights.num_elements(),
                dtype_name(flat_weights.dtype()), layout.num_elements(), dtype_name(dtype));
  TESSERA_CHECK(flat_gradients.empty() || (flat_gradients.dtype() == DType::kF32 &&
                                           flat_gradients.num_elements() == layout.num_elements()),
                "gradients of {} {}, expected {} F32", flat_gradients.num_elements(),
                dtype_name(flat_gradients.dtype()), layout.num_elements());
  check_is_on(ops->device(), flat_weights);
  check_is_on(ops->device(), flat_gradients);
  access = nullptr;
  dembedding_VD = {};
  head_grads = {};
  std::fill(layer_grads.begin(), layer_grads.end(), LayerGrads{});
  for (int64_t group = 0; group <= head_group(); ++group) {
    bind_weights(group, flat_weights);
    if (!flat_gradients.empty()) bind_gradients(group, flat_gradients);
  }
  assign_packed_forms();
}

void Model::Impl::bind_weights(int64_t group, ConstTensorView flat) {
  const auto matrix = [&](const char* name) {
    const Parameter& parameter = layout.at(name);
    return flat.rows(parameter.offset, parameter.offset + parameter.num_elements)
        .reshaped(Shape(parameter.shape));
  };
  if (group == 0) {
    embedding_VD = matrix("model.embed_tokens.weight");
    if (config.tie_word_embeddings) head.lm_head_VD = embedding_VD;
  } else if (group == head_group()) {
    head.norm_D = matrix("model.norm.weight");
    if (!config.tie_word_embeddings) head.lm_head_VD = matrix("lm_head.weight");
  } else {
    layers[static_cast<size_t>(group - 1)] = bind_layer(config, layout, group - 1, flat);
  }
}

void Model::Impl::bind_gradients(int64_t group, TensorView flat) {
  const auto matrix = [&](const char* name) {
    const Parameter& parameter = layout.at(name);
    return flat.rows(parameter.offset, parameter.offset + parameter.num_elements)
        .reshaped(Shape(parameter.shape));
  };
  const ParameterLayout::Group range = layout.groups()[static_cast<size_t>(group)];
  group_gradients[static_cast<size_t>(group)] = flat.rows(range.begin, range.end);
  if (group == 0) {
    dembedding_VD = matrix("model.embed_tokens.weight");
    if (config.tie_word_embeddings) head_grads.lm_head_VD = dembedding_VD;
  } else if (group == head_group()) {
    head_grads.norm_D = matrix("model.norm.weight");
    if (!config.tie_word_embeddings) head_grads.lm_head_VD = matrix("lm_head.weight");
  } else {
    layer_grads[static_cast<size_t>(group - 1)] = bind_layer(config, layout, group - 1, flat);
  }
}

OpsLimits Model::Impl::ops_limits(const ActivationLimits& for_limits) const {
  return ops_limits(for_limits, all_logits_pieces(for_limits.max_tokens, config.vocab_size));
}

OpsLimits Model::Impl::ops_limits(const ActivationLimits& for_limits,
                                  std::span<const LogitsPieces> logits) const {
  OpsLimits result = {};
  result.max_tokens = for_limits.max_tokens;
  result.max_sequence_length = for_limits.max_sequence_length;
  result.hidden_size = config.hidden_size;
  result.max_sum_elements = config.vocab_size * config.hidden_size;
  result.attention = attention_block_config(config, 0).shape;
  result.attention.sliding_window = 0;  // the widest window a layer may have
  result.dtype = dtype;
  result.training = for_limits.training;
  const auto add_linear = [&](int64_t max_rows, int64_t N, int64_t K, int64_t num_rows, int64_t first_row) {
    const int64_t packed_rows = for_limits.pack_weights ? num_rows : 0;
    result.linears.push_back({max_rows, {N, K, packed_rows, first_row}});
  };
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const std::pair<int64_t, int64_t> of_layer[] = {{result.attention.qkv_width(), hidden},
                                                  {hidden, config.num_attention_heads * config.head_dim},
                                                  {2 * intermediate, hidden},
                                                  {hidden, intermediate}};
  for (const auto& [N, K] : of_layer) add_linear(for_limits.max_tokens, N, K, N, 0);
  for (const LogitsPieces& pieces : logits) {
    result.max_logits_rows = std::max(result.max_logits_rows, pieces.rows);
    for (int64_t row = 0; row < config.vocab_size; row += pieces.columns) {
      add_linear(pieces.rows, std::min(pieces.columns, config.vocab_size - row), hidden, config.vocab_size,
                 row);
    }
  }
  return result;
}

void Model::Impl::reserve(const ActivationLimits& new_limits) {
  limits = new_limits;
  mode = activation_mode(limits);
  const auto [saved_bytes, working_bytes] = measure_activations(config, dtype, limits);
  Device& device = ops->device();
  saved_memory = device.allocate(saved_bytes);
  working_memory = device.allocate(working_bytes);
  workspace = device.allocate(ops->workspace_bytes(ops_limits(limits)));
  reserve_packed_forms();
  rope = RopeTableBuffer(config, limits.max_sequence_length, device);
  activations.reserve(config, limits.max_tokens);
}

SequenceInfo Model::Impl::sequence_info(const PackedBatch& batch) const {
  return {batch.cu_seqlens, batch.positions, rope.table()};
}

void Model::Impl::begin(const PackedBatch& batch) {
  TESSERA_CHECK(has_weights(), "no weights are bound");
  is_abandoned = false;
  check_batch(batch, limits, config.vocab_size);
  Arena saved(saved_memory);
  Arena working(working_memory);
  activations.lay_out(config, dtype, batch.num_tokens(), mode, saved, working);
  // A Generator on the same Ops may have bound its own workspace.
  ops->bind_workspace(workspace.span());
  refresh_packed_forms();
}

void Model::Impl::forward_embedding(const PackedBatch& batch) {
  open_weights(0, WeightUse::kForward);
  const TensorView x_TD = activations.layers.front().attention.x_TD;
  if (!is_abandoned) {
    ops->embedding(batch.input_ids, embedding_VD, x_TD);
    if (watch) watch(-1, "embedding", x_TD);
  }
  close_weights(0);
}

void Model::Impl::forward_layers(const SequenceInfo& sequences) {
  ConstTensorView residual_TD;  // the embedding is the whole stream
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSaved& saved = activations.layers[i];
    const bool is_last = i + 1 == layers.size();
    const TensorView y_TD = is_last ? activations.final_x_TD : activations.layers[i + 1].attention.x_TD;
    const int64_t group = static_cast<int64_t>(i) + 1;
    open_weights(group, WeightUse::kForward);
    if (!is_abandoned) {
      decoder_layer_forward(*ops, block_configs[i], layers[i], sequences, residual_TD, saved,
                            activations.layer_scratch, y_TD);
    }
    close_weights(group);
    if (watch && !is_abandoned) {
      watch(static_cast<int64_t>(i), "attention", saved.mlp.x_TD);
      watch(static_cast<int64_t>(i), "mlp", y_TD);
    }
    residual_TD = saved.mlp.x_TD;
  }
  if (!is_abandoned) ops->add(activations.final_x_TD, residual_TD);
}

LossSums Model::Impl::loss_and_head_backward(const PackedBatch& batch, float grad_scale,
                                             float label_smoothing, WeightUpdate update) {
  if (is_abandoned) return {};
  const bool complete = !config.tie_word_embeddings;  // a tied table waits for backward_embedding
  const WeightUpdate of_head = {update.mode, complete ? update.squares : nullptr};
  const LossSums sums =
      loss_head_forward_backward(*ops, block_configs.front().norm_eps, head, head_grads, of_head,
                                 batch.targets, label_smoothing, grad_scale, activations.final_x_TD,
                                 activations.loss_scratch, activations.target_rows, activations.dx_TD);
  if (sums.num_targets > 0) add_squares(head_group(), kVector, update.squares);
  return sums;
}

void Model::Impl::backward_layers(const SequenceInfo& sequences, WeightUpdate update) {
  for (size_t i = layers.size(); i-- > 0;) {
    const LayerSaved& saved = activations.layers[i];
    const int64_t group = static_cast<int64_t>(i) + 1;
    open_weights(group, WeightUse::kBackward);
    if (mode == ActivationMode::kKeepInputs && !is_abandoned) {
      decoder_layer_recompute(*ops, block_configs[i], layers[i], sequences, saved, activations.layer_scratch);
    }
    open_gradients(group);
    if (!is_abandoned) {
      decoder_layer_backward(*ops, block_configs[i], layers[i], layer_grads[i], update, sequences, saved,
                             activations.layer_scratch, activations.dx_TD);
      add_squares(group, kVector, update.squares);
    }
    close_weights(group);
    close_gradients(group);
  }
}

void Model::Impl::backward_embedding(const PackedBatch& batch, WeightUpdate update) {
  // Rows of tokens that do not occur get no gradient. A tied table already holds the gradient of the LM head.
  if (!config.tie_word_embeddings) {
    open_gradients(0);
    if (update.mode == Update::kOverwrite) ops->zero(dembedding_VD);
  }
  if (!is_abandoned) {
    const auto padding_id = static_cast<int32_t>(config.pad_token_id.value_or(kNoPaddingId));
    ops->embedding_backward(batch.input_ids, activations.dx_TD, padding_id, dembedding_VD);
    add_squares(0, kMatrix, update.squares);
  }
  close_gradients(0);
}

void Model::Impl::add_squares(int64_t group, size_t max_rank, double* squares) {
  if (squares == nullptr) return;
  const TensorView flat = group_gradients[static_cast<size_t>(group)];
  const int64_t begin = layout.groups()[static_cast<size_t>(group)].begin;
  for (const Parameter& parameter : layout.parameters()) {
    if (parameter.group != group || parameter.shape.size() > max_rank) continue;
    const int64_t offset = parameter.offset - begin;
    *squares += ops->sum_of_squares(flat.rows(offset, offset + parameter.num_elements));
  }
}

Model::Model(const ModelConfig& config, DType dtype, Ops& ops)
    : impl_(std::make_unique<Impl>(config, dtype, ops)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

const ModelConfig& Model::config() const { return impl_->config; }
const ParameterLayout& Model::layout() const { return impl_->layout; }
DType Model::dtype() const { return impl_->dtype; }
Device& Model::device() const { return impl_->ops->device(); }

ActivationBytes Model::activation_bytes(const ActivationLimits& limits) const {
  const ModelConfig& config = impl_->config;
  const auto [saved_bytes, working_bytes] = measure_activations(config, impl_->dtype, limits);
  return {saved_bytes, working_bytes + RopeTableBuffer::size_bytes(config, limits.max_sequence_length),
          impl_->ops->workspace_bytes(impl_->ops_limits(limits)), impl_->packed_bytes(limits)};
}

void Model::bind_parameters(TensorView weights, TensorView gradients) {
  impl_->bind_parameters(weights, gradients);
}

void Model::bind_parameters(ParameterAccess& access) {
  TESSERA_CHECK(&device() == &host_device(), "parameters of the host for a model on {}", device().name());
  impl_->access = &access;
}

void Model::pack_group(int64_t group, std::byte* weights, const PackShare& share) {
  impl_->bind_opened_weights(group, weights);
  impl_->pack_group(group, share);
}

void Model::reserve(const ActivationLimits& limits) { impl_->reserve(limits); }

ActivationBytes Model::reserved_bytes() const {
  return {impl_->saved_memory.size_bytes(), impl_->working_memory.size_bytes() + impl_->rope.size_bytes(),
          impl_->workspace.size_bytes(), impl_->packed_memory.size_bytes()};
}

void Model::call_between_layers(BetweenLayers hook) { impl_->between_layers = std::move(hook); }
void Model::watch_layers(LayerWatch watch) { impl_->watch = std::move(watch); }
void Model::watch_gradients(GradientWatch watch) { impl_->gradient_watch = std::move(watch); }

void Model::weights_changed() { impl_->packed_forms_are_stale = true; }

LossSums Model::forward_backward(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                 WeightUpdate gradient_update) {
  Impl& impl = *impl_;
  TESSERA_CHECK(impl.limits.training, "activations are reserved for the forward pass only");
  TESSERA_CHECK(impl.access != nullptr || !impl.dembedding_VD.empty(), "no gradients are bound");
  impl.begin(batch);
  const SequenceInfo sequences = impl.sequence_info(batch);
  impl.forward_embedding(batch);
  impl.forward_layers(sequences);
  impl.open_head_weights();
  impl.open_head_gradients();
  const LossSums sums = impl.loss_and_head_backward(batch, grad_scale, label_smoothing, gradient_update);
  impl.close_head_weights();
  if (sums.num_targets > 0) {
    impl.close_gradients(impl.head_group());
    impl.backward_layers(sequences, gradient_update);
    impl.backward_embedding(batch, gradient_update);
  } else {
    impl.backward_nothing(gradient_update);
  }
  return sums;
}

void Model::take_part_in_forward_backward(Update gradient_update) {
  Impl& impl = *impl_;
  impl.forward_nothing();
  impl.open_head_gradients();
  impl.close_head_weights();
  impl.backward_nothing(gradient_update);
}

void Model::take_part_in_forward() {
  impl_->forward_nothing();
  impl_->close_head_weights();
}

LossSums Model::forward_loss(const PackedBatch& batch, float label_smoothing) {
  Impl& impl = *impl_;
  impl.begin(batch);
  impl.forward_embedding(batch);
  impl.forward_layers(impl.sequence_info(batch));
  impl.open_head_weights();
  LossSums sums;
  if (!impl.is_abandoned) {
    sums = loss_head_forward(*impl.ops, impl.block_configs.front().norm_eps, impl.head, batch.targets,
                             label_smoothing, impl.activations.final_x_TD, impl.activations.loss_scratch,
                             impl.activations.target_rows);
  }
  impl.close_head_weights();
  return sums;
}

void Model::forward_logits(const PackedBatch& batch, TensorView logits_TV) {
  Impl& impl = *impl_;
  const Shape expected = {batch.num_tokens(), impl.config.vocab_size};
  TESSERA_CHECK(logits_TV.shape() == expected && logits_TV.dtype() == DType::kF32, "logits are {} {}",
                dtype_name(logits_TV.dtype()), logits_TV.shape().to_string());
  check_is_on(device(), logits_TV);
  impl.begin(batch);
  impl.forward_embedding(batch);
  impl.forward_layers(impl.sequence_info(batch));
  const LossHeadScratch& scratch = impl.activations.loss_scratch;
  impl.open_head_weights();
  impl.ops->rmsnorm(impl.activations.final_x_TD, impl.head.norm_D, impl.block_configs.front().norm_eps,
                    scratch.norm_TD, scratch.rstd_T);
  TESSERA_CHECK(scratch.pieces.columns == impl.config.vocab_size, "{} tokens", batch.num_tokens());
  for (int64_t row = 0; row < batch.num_tokens(); row += scratch.pieces.rows) {
    const int64_t end = std::min(row + scratch.pieces.rows, batch.num_tokens());
    impl.ops->linear(scratch.norm_TD.rows(row, end), impl.head.lm_head_VD, /*bias_N=*/{},
                     logits_TV.rows(row, end));
  }
  impl.close_head_weights();
}

}  // namespace tessera
