// What a run on a card cannot have yet.
#pragma once

#include "arguments/arguments.h"

namespace tessera {

// Error(kBadConfig) if device cuda does not go with another setting.
void check_device(const TrainingArguments& args, int64_t world_size);

}  // namespace tessera
