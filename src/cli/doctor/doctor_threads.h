// What `tessera doctor` says about processors, cores and the threads that compute on them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/threads.h"

namespace tessera {

// `num_online` processors of the machine, allowed or not.
nlohmann::ordered_json threads_json(const PoolThreads& threads, int64_t num_online);

// Names and values, to be printed below each other.
std::vector<std::pair<std::string, std::string>> thread_rows(const PoolThreads& threads, int64_t num_online);

}  // namespace tessera
