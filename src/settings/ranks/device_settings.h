// What a run on a card can have.
#pragma once

#include "settings/run_settings.h"

namespace tessera {

// Error(kBadConfig) if device cuda does not go with another setting.
void check_device(const RunSpec& args, int64_t world_size);

// Whether it is the host that updates the weights of a run on a card.
bool optimizer_is_on_host(const RunSpec& args);

}  // namespace tessera
