// What a run was: the table at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/observer.h"

namespace tessera {

// What the summary does not have.
struct ClosingFacts {
  int num_ranks = 1;
  int num_nodes = 1;
  // Of a node of several ranks, after a step.
  std::optional<int64_t> node_bytes = {};
  int64_t memory_limit_bytes = 0;  // of the node or its control group
};

// Time by phase, tokens, speed, memory, loss, where the model is, and what to try next; lines of at most
// `width` columns, except for paths that are longer. `resuming` says how to resume a run that a signal has
// ended.
std::string closing_table(const TrainSummary& summary, const ClosingFacts& facts, const std::string& resuming,
                          int64_t width);

}  // namespace tessera
