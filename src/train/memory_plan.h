// What a run will keep in memory, by kind, known before any of it is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace tessera {

struct MemoryItem {
  std::string name;
  int64_t size_bytes;
};

// Sizes of the allocations themselves, so that the resident set of the process at its peak is the total; the
// system rounds each large allocation up to pages of 2 MiB at most.
struct MemoryPlan {
  std::vector<MemoryItem> items;

  int64_t total_bytes() const;
};

// What decides the memory of a training run.
struct MemoryRequest {
  ActivationLimits limits;
  int64_t baseline_bytes = 0;  // resident before the model is allocated: program, threads, row index
  int64_t export_bytes = 0;    // buffers of writing weights
};

MemoryPlan plan_memory(const Model& model, const MemoryRequest& request);

// Beyond the baseline, which is resident already.
int64_t needed_bytes(const Model& model, const MemoryRequest& request);

// A change of settings and the limits that would follow from it.
struct MemoryAlternative {
  std::string change;  // "gradient_checkpointing true"
  ActivationLimits limits;
};

// Refuses (kBadConfig) a plan of more than free_bytes beyond the baseline, which is resident already. The
// message has the table in short and the first of the alternatives that would fit.
void check_memory_fits(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                       const std::vector<MemoryAlternative>& alternatives);

// The plan as lines of text, aligned, with the total and what is free.
std::string memory_table(const MemoryPlan& plan, int64_t free_bytes);

}  // namespace tessera
