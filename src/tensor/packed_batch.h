// A micro-batch as the model sees it: T tokens of several sequences back to back, without padding. A model
// with an encoder and a decoder sees all sources first, then all targets in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

inline constexpr int32_t kIgnoredLabel = -100;

struct PackedBatch {
  std::vector<int32_t> input_ids;  // [T]
  std::vector<int32_t> positions;  // [T], from 0 in each sequence; index into the rotary embedding
  // [T] what position t must predict: the label of position t + 1 of the same sequence; kIgnoredLabel at the
  // end of a sequence and wherever that label is ignored. The shift in Hugging Face's loss is already
  // applied. In an encoder, the label of position t itself.
  std::vector<int32_t> targets;
  std::vector<int32_t> token_types;  // [T] of an encoder; empty: all are 0
  std::vector<int32_t>
      cu_seqlens;           // [num_sequences + 1], 0 = first, T = last: attention stays inside a sequence
  int64_t num_targets = 0;  // targets that are not kIgnoredLabel
  // The first of the sequences that are sources, as many as there are targets after them; 0: none.
  int64_t num_sources = 0;
  // Other ranks compute the rest of these sequences (context/): gradients come even to a batch without
  // targets.
  bool is_slice = false;

  int64_t num_tokens() const { return static_cast<int64_t>(input_ids.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  // Rows of the dataset, or pairs of a source and its target.
  int64_t num_rows() const { return num_sequences() - num_sources; }
  int64_t num_source_tokens() const { return cu_seqlens[static_cast<size_t>(num_sources)]; }
};

}  // namespace tessera
