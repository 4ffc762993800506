#include "plan/passes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "optim/optimizer_state.h"
#include "plan/memory_plan.h"

namespace tessera {

int64_t micro_batches_per_pass(const TrainableModel& model, const ActivationLimits& micro_batch,
                               int64_t max_merged, StateTensors state_tensors) {
  // This many tokens use a weight for 4096 operations per read, and a gradient element for as many per
  // update: more gains little (docs/performance.md).
  constexpr int64_t kEnoughTokens = 2048;
  constexpr int64_t kStateShare = 8;
  const int64_t num_elements = model.layout().num_elements();
  ZeroSettings settings;
  settings.state_tensors = state_tensors;
  const int64_t state_bytes =
      num_elements * (dtype_bytes(model.dtype()) + dtype_bytes(DType::kF32)) +
      largest_state_bytes(zero_layout(model.layout(), 1, 1), settings, /*of_rail=*/false) +
      optimizer_state_bytes({}, num_elements, model.dtype()) +
      (model.is_adapted() ? model.weight_layout().num_elements() : 0) * dtype_bytes(model.dtype());
  ActivationLimits limits = micro_batch;
  limits.gradient_checkpointing = limits.offload_inputs = false;  // must not affect the choice
  const int64_t max_bytes = model.activation_bytes(limits).total() + state_bytes / kStateShare;
  int64_t merged = 1;
  while (merged < max_merged && merged * micro_batch.max_tokens < kEnoughTokens) {
    limits.max_tokens = (merged + 1) * micro_batch.max_tokens;
    if (model.activation_bytes(limits).total() > max_bytes) break;
    ++merged;
  }
  return merged;
}

int64_t largest_pass(const StepSurvey& survey) {
  // Dealing this many to ranks takes about 0.1 s.
  constexpr int64_t kMaxRows = 1'000'000;
  const int64_t num_asked = std::min(survey.num_steps, std::max<int64_t>(1, kMaxRows / survey.step_rows));
  const int64_t most_possible = survey.max_pass_rows * survey.max_row_length;
  int64_t largest = 0;
  for (int64_t step = 0; step < num_asked; ++step) {
    if (largest == most_possible) return largest;
    largest = std::max(largest, survey.largest_pass_of(step));
  }
  if (num_asked == survey.num_steps || largest == most_possible) return largest;

  std::vector<int64_t> lengths(static_cast<size_t>(survey.num_rows));
  for (int64_t row = 0; row < survey.num_rows; ++row) {
    lengths[static_cast<size_t>(row)] = survey.row_length(row);
  }
  const auto end_of_longest = lengths.begin() + std::min(survey.max_pass_rows, survey.num_rows);
  std::nth_element(lengths.begin(), end_of_longest, lengths.end(), std::greater<>());
  // A pass that needs more rows than there are contains some of them twice.
  const int64_t num_repeated = survey.max_pass_rows - (end_of_longest - lengths.begin());
  return std::accumulate(lengths.begin(), end_of_longest, num_repeated * survey.max_row_length);
}

std::string name_rows(const RowLists& passes) {
  constexpr size_t kMaxNamedRows = 32;
  const std::span<const int64_t> rows = passes.all_rows();
  return fmt::format("rows {}{}", fmt::join(rows.first(std::min(rows.size(), kMaxNamedRows)), ", "),
                     rows.size() > kMaxNamedRows ? fmt::format(", ... ({} in all)", rows.size()) : "");
}

}  // namespace tessera
