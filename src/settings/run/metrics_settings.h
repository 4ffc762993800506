// Where a run shows how it does: metrics_port, metrics_host, health_timeout.
#pragma once

#include <cstdint>
#include <optional>

#include "base/flags.h"
#include "settings/run_settings.h"

namespace tessera {

inline constexpr int64_t kDefaultMetricsPort = 9404;
inline constexpr const char* kMetricsTokenVariable = "TESSERA_METRICS_TOKEN";

void declare_metrics_flags(FlagTable* table, RunSpec* args);

// The port on which ranks that serve metrics listen, 0 = any; nullopt = nothing is served.
std::optional<int64_t> serving_port(const RunSpec& args);

}  // namespace tessera
