#include "context/slice_batch.h"

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {

int64_t tokens_of_member(int64_t num_tokens, int64_t size) { return divide_up(num_tokens, size); }

void slice_batch(const PackedBatch& whole, int64_t size, int64_t index, PackedBatch* slice,
                 std::vector<int32_t>* cu_seqlens) {
  TESSERA_CHECK(0 <= index && index < size, "member {} of {}", index, size);
  const int64_t num_tokens = whole.num_tokens();
  const int64_t own_tokens = tokens_of_member(num_tokens, size);
  *cu_seqlens = whole.cu_seqlens;
  if (num_tokens < size * own_tokens) cu_seqlens->push_back(static_cast<int32_t>(size * own_tokens));

  slice->is_slice = size > 1;
  slice->num_targets = 0;
  slice->input_ids.clear();
  slice->positions.clear();
  slice->targets.clear();
  for (int64_t t = index; t < size * own_tokens; t += size) {
    const auto at = static_cast<size_t>(t);
    const bool is_added = t >= num_tokens;
    slice->input_ids.push_back(is_added ? 0 : whole.input_ids[at]);
    slice->positions.push_back(is_added ? 0 : whole.positions[at]);
    slice->targets.push_back(is_added ? kIgnoredLabel : whole.targets[at]);
    if (slice->targets.back() != kIgnoredLabel) ++slice->num_targets;
  }
  // The number of this member's tokens before each bound.
  slice->cu_seqlens.clear();
  for (const int32_t bound : *cu_seqlens) {
    slice->cu_seqlens.push_back(static_cast<int32_t>(divide_up(bound - index, size)));
  }
}

}  // namespace tessera
