// The state of AdamW as checkpoints name it.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/run_state.h"
#include "optim/adamw.h"

namespace tessera {

// Of elements from `begin` of the weights on, whose state begins at `state_begin`. On the calling thread
// alone.
void read_adamw_state(const AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                      std::span<float> values);
void write_adamw_state(AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                       std::span<const float> values);

}  // namespace tessera
