// Attention of any queries to any keys: what general_attention() takes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/attention_shape.h"
#include "kernels/dropout/dropout.h"
#include "kernels/update.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Added to the scores of query t and key s: table[bucket of s - t] of the head. Raffel et al., "Exploring the
// Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020, 2.1.
struct PositionBias {
  ConstTensorView table_BH;  // [buckets, H], of the dtype of the rows
  std::span<const int32_t>
      buckets;  // of the distances s - t from -zero on; those beyond its ends have the last's
  int64_t zero = 0;

  int64_t bucket(int64_t distance) const {
    const int64_t last = std::ssize(buckets) - 1;
    const int64_t at = distance + zero;
    return buckets[static_cast<size_t>(at < 0 ? 0 : at > last ? last : at)];
  }
};

// Queries of sequence n, rows [cu_queries[n], cu_queries[n + 1]) of q_rows, see the keys and values in rows
// [cu_keys[n], cu_keys[n + 1]) of kv_rows, of which there is at least one if there are queries. The last
// query and the last key have the same position.
struct AttentionInputs {
  ConstTensorView q_rows;   // [T, ...]: H heads from q_column on
  ConstTensorView kv_rows;  // [S, ...]: G heads from k_column and from v_column on; may be q_rows
  int64_t q_column = 0;
  int64_t k_column = 0;
  int64_t v_column = 0;
  std::span<const int32_t> cu_queries;
  std::span<const int32_t> cu_keys;
  // Keys at later positions are not seen. With a sliding window w, keys are seen whose position differs by
  // less than w, in both directions unless causal.
  bool causal = true;
  const PositionBias* bias = nullptr;
  // What is dropped of the probabilities: element dropout_element(h, s) of query t's token, with s counted
  // from the first key of the sequence. Null: nothing.
  const Dropout* dropout = nullptr;
  // A logit of each head that takes part in every softmax but has no value; empty: none.
  ConstTensorView sinks_H = {};

  // Causal attention inside the sequences of fused rows.
  static AttentionInputs of_fused(ConstTensorView qkv_TQ, const AttentionShape& shape,
                                  std::span<const int32_t> cu_seqlens) {
    const int64_t q_width = shape.num_heads * shape.head_dim;
    const int64_t k_width = shape.num_key_value_heads * shape.head_dim;
    return {qkv_TQ, qkv_TQ, 0, q_width, q_width + k_width, cu_seqlens, cu_seqlens};
  }
};

// Where the gradients go: to the same columns of rows of the same widths.
struct AttentionGradients {
  TensorView dq_rows;
  TensorView dkv_rows;
  TensorView dtable_BH;  // F32; empty: not wanted
  Update table_update = Update::kOverwrite;
  TensorView dsinks_H = {};  // the same
  Update sinks_update = Update::kOverwrite;
};

}  // namespace tessera
