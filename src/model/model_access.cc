// Opening and closing parameter groups (parameter_access.h).
#include "model/model_impl.h"

namespace tessera {
namespace {

// The flat array, of which only the elements of `group` exist: they begin at `data`.
TensorView flat_array(const ParameterLayout& layout, int64_t group, std::byte* data, DType dtype) {
  const int64_t offset_bytes = layout.groups()[static_cast<size_t>(group)].begin * dtype_bytes(dtype);
  const auto begin = reinterpret_cast<uintptr_t>(data) - static_cast<uintptr_t>(offset_bytes);
  return {reinterpret_cast<std::byte*>(begin), dtype, {layout.num_elements()}};
}

}  // namespace

void Model::Impl::open_weights(int64_t group, WeightUse use) {
  if (between_layers && !between_layers(group, use)) is_abandoned = true;
  if (access == nullptr) return;
  bind_opened_weights(group, access->open_weights(group, use));
}

void Model::Impl::bind_opened_weights(int64_t group, std::byte* data) {
  std::byte*& bound = group_weights[static_cast<size_t>(group)];
  if (data == bound) return;
  bound = data;
  bind_weights(group, flat_array(layout, group, data, dtype));
  assign_packed_forms(group, access->packed_forms(group));
}

void Model::Impl::close_weights(int64_t group) {
  if (access != nullptr) access->close_weights(group);
}

void Model::Impl::open_gradients(int64_t group) {
  if (access == nullptr) return;
  std::byte* data = access->open_gradients(group);
  if (data == group_gradients[static_cast<size_t>(group)].bytes()) return;
  bind_gradients(group, flat_array(layout, group, data, DType::kF32));
}

void Model::Impl::show_gradients(int64_t group) const {
  const TensorView flat = group_gradients[static_cast<size_t>(group)];
  const int64_t begin = layout.groups()[static_cast<size_t>(group)].begin;
  for (const Parameter& parameter : layout.parameters()) {
    if (parameter.group != group) continue;
    const int64_t offset = parameter.offset - begin;
    gradient_watch(parameter, flat.rows(offset, offset + parameter.num_elements));
  }
}

void Model::Impl::close_gradients(int64_t group) {
  if (gradient_watch && !is_abandoned) show_gradients(group);
  if (access != nullptr) access->close_gradients(group);
}

void Model::Impl::open_head_weights() {
  if (config.tie_word_embeddings) open_weights(0, WeightUse::kBackward);
  open_weights(head_group(), WeightUse::kBackward);
}

void Model::Impl::close_head_weights() {
  close_weights(head_group());
  if (config.tie_word_embeddings) close_weights(0);
}

void Model::Impl::open_head_gradients() {
  if (config.tie_word_embeddings) open_gradients(0);
  open_gradients(head_group());
}

void Model::Impl::forward_nothing() {
  for (int64_t group = 0; group < head_group(); ++group) {
    open_weights(group, WeightUse::kForward);
    close_weights(group);
  }
  open_head_weights();
}

void Model::Impl::backward_nothing(WeightUpdate update) {
  // With kAdd there is nothing to add.
  const auto finish = [&](int64_t group) {
    if (update.mode == Update::kOverwrite) {
      ops->zero(group_gradients[static_cast<size_t>(group)]);
    } else {
      add_squares(group, kMatrix, update.squares);
    }
    close_gradients(group);
  };
  finish(head_group());
  for (int64_t group = head_group() - 1; group > 0; --group) {
    open_weights(group, WeightUse::kBackward);
    open_gradients(group);
    close_weights(group);
    finish(group);
  }
  if (!config.tie_word_embeddings) open_gradients(0);
  finish(0);
}

}  // namespace tessera
