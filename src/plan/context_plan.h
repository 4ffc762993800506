// Memory and network traffic of ranks that share rows (context/), as closed forms.
#pragma once

#include <cstdint>

#include "plan/memory_plan.h"

namespace tessera {

// In memory that its node shares, of a rank.
int64_t context_buffer_bytes(const TrainableModel& model, const MemoryRequest& request);

// Payload that a node sends and receives in a step whose passes are all as large as the largest; 0 if teams
// do not go beyond a node.
int64_t context_wire_bytes(const TrainableModel& model, const MemoryRequest& request);

}  // namespace tessera
