// What a DeepSpeed configuration says without effect.
#pragma once

#include <cstdint>

#include "formats/deepspeed/deepspeed_config.h"

namespace tessera {

// Logs its notes, and the keys that take effect once there are several ranks, one line per reason.
void log_deepspeed_notes(const DeepSpeedConfig& config, int64_t world_size);

}  // namespace tessera
