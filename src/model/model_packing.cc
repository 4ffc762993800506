// The packed forms of the matrices (kernels/gemm/linear_weight.h): where they are, and how they are made.
#include <algorithm>

#include "model/model_impl.h"

namespace tessera {

// Visits the matrices of a group in the order of their forms in memory; the embedding has none unless it is
// also the LM head.
template <typename Body>
void Model::Impl::for_each_matrix(int64_t group, const Body& body) {
  if (group == 0 || group == head_group()) {
    if (config.tie_word_embeddings == (group == 0)) body(head.lm_head_VD);
    return;
  }
  LayerWeights& layer = layers[static_cast<size_t>(group - 1)];
  body(layer.attention.wqkv_QD);
  body(layer.attention.wo_DHE);
  body(layer.mlp.w1_F2D);
  body(layer.mlp.w2_DF);
}

int64_t Model::Impl::packed_bytes(int64_t group, const ActivationLimits& for_limits) const {
  if (!for_limits.pack_weights) return 0;
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const auto bytes = [&](int64_t N, int64_t K) {
    return (for_limits.training ? 2 : 1) * ops->packed_weight_bytes(N, K, dtype);
  };
  if (group == 0 || group == head_group()) {
    return config.tie_word_embeddings == (group == 0) ? bytes(config.vocab_size, hidden) : 0;
  }
  return bytes(block_configs.front().shape.qkv_width(), hidden) +
         bytes(hidden, config.num_attention_heads * config.head_dim) + bytes(2 * intermediate, hidden) +
         bytes(hidden, intermediate);
}

int64_t Model::Impl::packed_bytes(const ActivationLimits& for_limits) const {
  int64_t total = 0;
  for (int64_t group = 0; group <= head_group(); ++group) total += packed_bytes(group, for_limits);
  return total;
}

void Model::Impl::reserve_packed_forms() {
  std::vector<int64_t> bytes_by_group;
  for (int64_t group = 0; group <= head_group(); ++group) {
    bytes_by_group.push_back(packed_bytes(group, limits));
  }
  if (access != nullptr) {
    packed_memory = DeviceBuffer();
    if (packed_bytes(limits) > 0) access->reserve_packed_forms(bytes_by_group);
    // They are bound again, with their forms, when opened.
    std::fill(group_weights.begin(), group_weights.end(), nullptr);
    return;
  }
  packed_memory = ops->device().allocate(packed_bytes(limits));
  if (embedding_VD.empty()) return;
  assign_packed_forms();
}

void Model::Impl::assign_packed_forms() {
  std::byte* memory = packed_memory.address();
  for (int64_t group = 0; group <= head_group(); ++group) {
    assign_packed_forms(group, memory);
    if (memory != nullptr) memory += packed_bytes(group, limits);
  }
  packed_forms_are_stale = true;
}

void Model::Impl::assign_packed_forms(int64_t group, std::byte* memory) {
  for_each_matrix(group, [&](LinearWeight& matrix) {
    const ConstTensorView w_NK = matrix.w_NK;
    const int64_t size = ops->packed_weight_bytes(w_NK.dim(0), w_NK.dim(1), dtype);
    PackedForms forms;
    if (memory != nullptr) {
      forms.forward = memory;
      memory += size;
      if (limits.training) {
        forms.backward_input = memory;
        memory += size;
      }
    }
    matrix = {w_NK, forms};
  });
}

void Model::Impl::refresh_packed_forms() {
  if (packed_memory.size_bytes() == 0 || !packed_forms_are_stale) return;
  for (int64_t group = 0; group <= head_group(); ++group) pack_group(group, {});
  packed_forms_are_stale = false;
}

// The matrices, laid end to end, are cut into stretches of equal length, each boundary moved to the nearest
// row where a cut is allowed.
void Model::Impl::pack_group(int64_t group, const PackShare& share) {
  int64_t num_elements = 0;
  for_each_matrix(group, [&](const LinearWeight& matrix) { num_elements += matrix.w_NK.num_elements(); });
  int64_t matrix_begin = 0;
  for_each_matrix(group, [&](const LinearWeight& matrix) {
    const ConstTensorView w_NK = matrix.w_NK;
    const auto first_row = [&](int64_t share_index) {
      const int64_t element = num_elements * share_index / share.count - matrix_begin;
      if (element <= 0) return int64_t{0};
      if (element >= w_NK.num_elements()) return w_NK.dim(0);
      const int64_t row = (element / w_NK.dim(1) + kPackedRows / 2) / kPackedRows * kPackedRows;
      return std::min(row, w_NK.dim(0));
    };
    const RowRange rows = {first_row(share.index), first_row(share.index + 1)};
    if (rows.begin < rows.end) ops->pack_linear_weight(w_NK, matrix.packed, rows);
    matrix_begin += w_NK.num_elements();
  });
}

}  // namespace tessera
