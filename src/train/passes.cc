#include "train/passes.h"

#include <algorithm>

#include "base/error.h"
#include "optim/adamw.h"

namespace tessera {

int64_t micro_batches_per_pass(const Model& model, const ActivationLimits& micro_batch, int64_t max_merged) {
  // A weight is then used for 4096 operations per read, an element of a gradient for as many per update:
  // beyond it little is gained (docs/performance.md).
  constexpr int64_t kEnoughTokens = 2048;
  constexpr int64_t kStateShare = 8;
  const int64_t num_elements = model.layout().num_elements();
  const int64_t state_bytes = num_elements * (dtype_bytes(model.dtype()) + dtype_bytes(DType::kF32)) +
                              AdamW::state_bytes(num_elements, model.dtype());
  ActivationLimits limits = micro_batch;
  limits.gradient_checkpointing = false;  // which must not change the result
  const int64_t max_bytes = model.activation_bytes(limits).total() + state_bytes / kStateShare;
  int64_t merged = 1;
  while (merged < max_merged && merged * micro_batch.max_tokens < kEnoughTokens) {
    limits.max_tokens = (merged + 1) * micro_batch.max_tokens;
    if (model.activation_bytes(limits).total() > max_bytes) break;
    ++merged;
  }
  return merged;
}

std::string name_rows(const RowLists& passes) {
  constexpr size_t kMaxNamed = 32;
  const std::span<const int64_t> rows = passes.all_rows();
  return fmt::format("rows {}{}", fmt::join(rows.first(std::min(rows.size(), kMaxNamed)), ", "),
                     rows.size() > kMaxNamed ? fmt::format(", ... ({} in all)", rows.size()) : "");
}

}  // namespace tessera
