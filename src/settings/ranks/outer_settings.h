// Training in which nodes exchange their weights only now and then (DiLoCo): sync_every and what belongs to
// it. The names are torchft's.
#pragma once

#include <optional>

#include "base/flags.h"
#include "settings/run_settings.h"
#include "shard/layout/outer_settings.h"

namespace tessera {

void declare_outer_flags(FlagTable* table, RunSpec* args);

// Error(kBadConfig) for settings that contradict each other. Call once everything else is resolved.
void check_outer_arguments(const FlagTable& table, const RunSpec& args);

// nullopt without sync_every.
std::optional<OuterSettings> outer_settings_of(const RunSpec& args);

}  // namespace tessera
