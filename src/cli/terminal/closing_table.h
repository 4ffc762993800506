// Summarizes a run in a table when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/observer.h"

namespace tessera {

// The summary lacks these.
struct ClosingInputs {
  int num_ranks = 1;
  int num_nodes = 1;
  // Measured for a node of several ranks, after a step.
  std::optional<int64_t> node_bytes = {};
  int64_t memory_limit_bytes = 0;  // of the node or its control group; 0: not known
};

// Time by phase, tokens, speed, memory, loss, what to try next, and where the model is; lines of at most
// `width` columns, except for a longer path.
std::string closing_table(const TrainSummary& summary, const ClosingInputs& inputs, int64_t width);

}  // namespace tessera
