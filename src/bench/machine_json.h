// Parts that the JSON lines of all benchmarks share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "devices/measure/statistics.h"
#include "platform/cpu.h"

namespace tessera {

nlohmann::ordered_json to_json(const Quartiles& quartiles);
// processor, threads, time (UTC).
nlohmann::ordered_json machine_json(int64_t num_threads);

}  // namespace tessera
