// A micro-batch as the model sees it: T tokens of several sequences one after another, without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

inline constexpr int32_t kIgnoredLabel = -100;

struct PackedBatch {
  std::vector<int32_t> input_ids;  // [T]
  std::vector<int32_t> positions;  // [T], from 0 in every sequence; index of the rotary embedding
  // [T] what position t must predict: the label of position t + 1 of the same sequence, kIgnoredLabel at its
  // end and wherever that label is ignored. The shift of Hugging Face's loss is done already.
  std::vector<int32_t> targets;
  std::vector<int32_t>
      cu_seqlens;           // [num_sequences + 1], 0 = first, T = last: attention stays inside a sequence
  int64_t num_targets = 0;  // targets that are not kIgnoredLabel

  int64_t num_tokens() const { return static_cast<int64_t>(input_ids.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

}  // namespace tessera
