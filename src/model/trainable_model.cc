#include "model/trainable_model.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/float_types.h"

namespace tessera {
namespace {

void check_batch(const PackedBatch& batch, const ActivationLimits& limits, int64_t vocab_size) {
  const int64_t num_tokens = batch.num_tokens();
  TESSERA_CHECK(0 < num_tokens && num_tokens <= limits.max_tokens, "{} tokens, reserved for 1 to {}",
                num_tokens, limits.max_tokens);
  TESSERA_CHECK(
      batch.positions.size() == batch.input_ids.size() && batch.targets.size() == batch.input_ids.size(),
      "{} ids, {} positions, {} targets", batch.input_ids.size(), batch.positions.size(),
      batch.targets.size());
  TESSERA_CHECK(batch.token_types.empty() || batch.token_types.size() == batch.input_ids.size(),
                "{} token types", batch.token_types.size());
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

FormsKept forms_kept(const ActivationLimits& limits) {
  if (!limits.pack_weights) return FormsKept::kNone;
  return limits.training ? FormsKept::kAll : FormsKept::kForward;
}

}  // namespace

TrainableModel::TrainableModel(const ModelConfig& config, DType dtype, Ops& ops)
    : config_(config), dtype_(dtype), ops_(&ops) {
  one_token_.input_ids = one_token_.positions = {0};
  one_token_.targets = {kIgnoredLabel};
  one_token_.cu_seqlens = {0, 1};
  TESSERA_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "a model in {}", dtype_name(dtype));
}

void TrainableModel::list_tensors(const std::vector<ModelTensor>& tensors) {
  BoundParameters weights(tensors, dtype_, *ops_, /*num_groups=*/0, config_.base_quantization);
  if (!is_adapted()) {
    parameters_ = std::move(weights);
    return;
  }
  frozen_ = std::move(weights);
  parameters_ = BoundParameters(lora_tensors(tensors, *config_.lora, &lora_limits_), dtype_, *ops_,
                                frozen_.num_groups());
}

ParameterLayout TrainableModel::trained_layout(const ModelConfig& config,
                                               const std::vector<ModelTensor>& tensors) {
  ParameterLayout weights(tensors);
  if (!config.lora) return weights;
  LoraLimits limits;
  return ParameterLayout(lora_tensors(tensors, *config.lora, &limits), std::ssize(weights.groups()));
}

ActivationBytes TrainableModel::activation_bytes(const ActivationLimits& limits) const {
  ActivationBytes bytes = arena_bytes(limits);
  bytes.working_bytes += table_bytes(limits);
  bytes.workspace_bytes = ops_->workspace_bytes(ops_limits(limits));
  bytes.packed_bytes = packed_weights().packed_bytes(forms_kept(limits));
  return bytes;
}

OpsLimits TrainableModel::ops_limits_of_layers(const ActivationLimits& limits) const {
  OpsLimits result = {};
  result.max_tokens = limits.max_tokens;
  result.max_sequence_length = limits.max_sequence_length;
  result.hidden_size = config_.hidden_size;
  for (const Parameter& parameter : layout().parameters()) {
    result.max_sum_elements = std::max(result.max_sum_elements, parameter.num_elements);
  }
  result.dtype = dtype_;
  result.training = limits.training;
  result.linears = packed_weights().layer_products(limits.max_tokens, forms_kept(limits));
  for (const LinearShape& product : lora_limits_.products) {
    result.linears.push_back({limits.max_tokens, product, Quantization::kNone, /*transposed=*/true});
  }
  return result;
}

void TrainableModel::reserve(const ActivationLimits& limits) {
  limits_ = limits;
  const ActivationBytes bytes = arena_bytes(limits_);
  saved_memory_ = device().allocate(bytes.saved_bytes);
  working_memory_ = device().allocate(bytes.working_bytes);
  workspace_ = device().allocate(ops_->workspace_bytes(ops_limits(limits_)));
  packed_weights().reserve_packed_forms(forms_kept(limits_));
  reserved_table_bytes_ = reserve_tables(limits_);
}

ActivationBytes TrainableModel::reserved_bytes() const {
  return {saved_memory_.size_bytes(), working_memory_.size_bytes() + reserved_table_bytes_,
          workspace_.size_bytes(), packed_weights().reserved_packed_bytes()};
}

void TrainableModel::draw_dropout(const PassDropout& of_pass) {
  adapter_dropout_ = {of_pass.of_adapters, of_pass.seed, of_pass.tokens};
}

void TrainableModel::begin(const PackedBatch& batch, bool is_training) {
  TESSERA_CHECK(parameters_.has_weights() && packed_weights().has_weights(), "no weights are bound");
  is_abandoned_ = false;
  is_training_ = is_training;
  has_backward_ = limits_.training;
  check_batch(batch, limits_, config_.vocab_size);
  Arena saved(saved_memory_);
  Arena working(working_memory_);
  lay_out(batch, saved, working);
  // A TokenGenerator on the same Ops may have bound its own workspace.
  ops_->bind_workspace(workspace_.span());
  refresh_packed_forms();
}

void TrainableModel::forward_embedding(const PackedBatch& batch) {
  open_weights(0, WeightUse::kForward);
  if (!is_abandoned_) {
    compute_embedding(batch);
    if (is_training_ && embedding_noise_) add_noise();
    finish_embedding(batch);
  }
  close_weights(0);
}

void TrainableModel::add_noise() {
  constexpr int64_t kRows = 64;  // a few hundred KiB of the host's memory at a time
  const auto [x_TD, free_TD] = embedding_buffers();
  const int64_t T = x_TD.dim(0), D = x_TD.dim(1);
  noise_.resize(static_cast<size_t>(kRows * D));
  noise_bytes_.resize(noise_.size() * static_cast<size_t>(dtype_bytes(dtype_)));
  for (int64_t begin = 0; begin < T; begin += kRows) {
    const int64_t rows = std::min(kRows, T - begin);
    const std::span<float> noise = std::span(noise_).first(static_cast<size_t>(rows * D));
    for (int64_t row = 0; row < rows; ++row) {
      embedding_noise_(begin + row, noise.subspan(static_cast<size_t>(row * D), static_cast<size_t>(D)));
    }
    if (dtype_ == DType::kBF16) {
      std::ranges::transform(noise, reinterpret_cast<bf16*>(noise_bytes_.data()), to_bf16);
    } else {
      std::memcpy(noise_bytes_.data(), noise.data(), noise.size_bytes());
    }
    copy(ConstTensorView(noise_bytes_.data(), dtype_, {rows, D}), free_TD.rows(begin, begin + rows));
  }
  ops_->add(x_TD, free_TD);
}

void TrainableModel::forward_layers() {
  for (int64_t layer = 0; layer < num_layers(); ++layer) {
    open_weights(layer + 1, WeightUse::kForward);
    if (!is_abandoned_) compute_layer(layer);
    close_weights(layer + 1);
  }
}

LossSums TrainableModel::forward_backward_head(const PackedBatch& batch, float grad_scale,
                                               float label_smoothing, WeightUpdate update) {
  if (is_abandoned_) return {};
  // A tied table is complete only after backward_embedding(): the products of its head sum no squares.
  const WeightUpdate of_head = {update.mode, is_tied() ? nullptr : update.squares};
  const LossSums sums = compute_head(batch, grad_scale, label_smoothing, of_head);
  if (sums.num_targets > 0)
    parameters_.add_squares(head_group(), /*with_matrices=*/is_tied(), update.squares);
  return sums;
}

void TrainableModel::backward_layers(WeightUpdate update) {
  // Products sum the squares of matrices' gradients, but not those of adapters, which are small.
  const WeightUpdate of_layer = {update.mode, is_adapted() ? nullptr : update.squares};
  for (int64_t layer = num_layers() - 1; layer >= 0; --layer) {
    const int64_t group = layer + 1;
    open_weights(group, WeightUse::kBackward);
    if (limits_.gradient_checkpointing && !is_abandoned_) recompute_layer(layer);
    parameters_.open_gradients(group);
    if (!is_abandoned_) {
      compute_layer_backward(layer, of_layer);
      parameters_.add_squares(group, /*with_matrices=*/is_adapted(), update.squares);
    }
    close_weights(group);
    close_gradients(group);
  }
}

void TrainableModel::backward_embedding(const PackedBatch& batch, WeightUpdate update) {
  if (!is_tied()) parameters_.open_gradients(0);
  if (!is_abandoned_ && !is_adapted()) {
    compute_embedding_backward(batch, is_tied() ? Update::kAdd : update.mode);
    parameters_.add_squares(0, /*with_matrices=*/true, update.squares);
  }
  close_gradients(0);
}

LossSums TrainableModel::forward_backward(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                          WeightUpdate gradient_update) {
  TESSERA_CHECK(limits_.training, "activations are reserved for the forward pass only");
  TESSERA_CHECK(parameters_.has_gradients(), "no gradients are bound");
  begin(batch, /*is_training=*/true);
  forward_embedding(batch);
  forward_layers();
  open_head_weights();
  open_head_gradients();
  const LossSums sums = forward_backward_head(batch, grad_scale, label_smoothing, gradient_update);
  close_head_weights();
  if (sums.num_targets == 0 && !batch.is_slice) {
    backward_nothing(gradient_update);
    return sums;
  }
  if (sums.num_targets > 0) {
    close_gradients(head_group());
  } else {
    // backward_embedding() adds to a tied table.
    if (is_tied() && gradient_update.mode == Update::kOverwrite) ops_->zero(parameters_.gradients(0));
    close_zero_gradients(head_group(), gradient_update);
  }
  backward_layers(gradient_update);
  backward_embedding(batch, gradient_update);
  return sums;
}

LossSums TrainableModel::forward_loss(const PackedBatch& batch, float label_smoothing,
                                      std::span<LossSums> by_sequence) {
  TESSERA_CHECK(by_sequence.empty() || std::ssize(by_sequence) == batch.num_rows(),
                "room for {} losses, {} rows", by_sequence.size(), batch.num_rows());
  std::ranges::fill(by_sequence, LossSums());
  begin(batch);
  has_backward_ = false;
  forward_embedding(batch);
  forward_layers();
  open_head_weights();
  const LossSums sums = is_abandoned_ ? LossSums() : compute_loss(batch, label_smoothing, by_sequence);
  close_head_weights();
  return sums;
}

void TrainableModel::take_part_in_forward_backward(Update gradient_update) {
  if (expert_exchange() != nullptr) begin(one_token_);
  forward_nothing();
  open_head_gradients();
  close_head_weights();
  backward_nothing(gradient_update);
}

void TrainableModel::take_part_in_forward() {
  if (expert_exchange() != nullptr) begin(one_token_);
  forward_nothing();
  close_head_weights();
}

void TrainableModel::open_weights(int64_t group, WeightUse use) {
  if (between_layers_ && !between_layers_(group, use)) is_abandoned_ = true;
  parameters_.open_weights(group, use);
  frozen_.open_weights(group, use);
}

void TrainableModel::close_weights(int64_t group) {
  parameters_.close_weights(group);
  frozen_.close_weights(group);
}

void TrainableModel::close_gradients(int64_t group) {
  if (gradient_watch_ && !is_abandoned_) parameters_.show_gradients(group, gradient_watch_);
  parameters_.close_gradients(group);
}

void TrainableModel::open_head_weights() {
  if (is_tied()) open_weights(0, WeightUse::kBackward);
  open_weights(head_group(), WeightUse::kBackward);
}

void TrainableModel::close_head_weights() {
  close_weights(head_group());
  if (is_tied()) close_weights(0);
}

void TrainableModel::open_head_gradients() {
  if (is_tied()) parameters_.open_gradients(0);
  parameters_.open_gradients(head_group());
}

void TrainableModel::forward_nothing() {
  for (int64_t group = 0; group < head_group(); ++group) {
    open_weights(group, WeightUse::kForward);
    if (group > 0 && !is_abandoned_) help_with_layer(group - 1);
    close_weights(group);
  }
  open_head_weights();
}

// Under kAdd there is nothing to add.
void TrainableModel::close_zero_gradients(int64_t group, WeightUpdate update) {
  if (update.mode == Update::kOverwrite) {
    ops_->zero(parameters_.gradients(group));
  } else {
    parameters_.add_squares(group, /*with_matrices=*/true, update.squares);
  }
  close_gradients(group);
}

void TrainableModel::backward_nothing(WeightUpdate update) {
  close_zero_gradients(head_group(), update);
  for (int64_t group = head_group() - 1; group > 0; --group) {
    open_weights(group, WeightUse::kBackward);
    parameters_.open_gradients(group);
    if (expert_exchange() != nullptr) {
      if (update.mode == Update::kOverwrite) ops_->zero(parameters_.gradients(group));
      if (!is_abandoned_) help_with_layer_backward(group - 1);
      parameters_.add_squares(group, /*with_matrices=*/true, update.squares);
      close_weights(group);
      close_gradients(group);
      continue;
    }
    close_weights(group);
    close_zero_gradients(group, update);
  }
  if (!is_tied()) parameters_.open_gradients(0);
  close_zero_gradients(0, update);
}

}  // namespace tessera
