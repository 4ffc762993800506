// The state of AdamW as checkpoints name it.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/run_state.h"
#include "optim/adamw.h"

namespace tessera {

// Copies the state of weight elements from `begin` on, whose state begins at `state_begin`. Runs on the
// calling thread alone.
void read_adamw_state(const AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                      std::span<float> values);
void write_adamw_state(AdamW& optimizer, StateKind kind, int64_t begin, int64_t state_begin,
                       std::span<const float> values);

}  // namespace tessera
