// Formats what `tessera doctor` finds out about a machine: as JSON, with null for unknown values, and as rows
// of names and values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/threads.h"
#include "cluster/check.h"
#include "launch/job/rank_findings.h"
#include "platform/nvidia_cards.h"

namespace tessera {

using DoctorRows = std::vector<std::pair<std::string, std::string>>;

// Processors, cores and the threads that compute on them. `num_online` processors of the machine, allowed or
// not.
nlohmann::ordered_json threads_json(const PoolThreads& threads, int64_t num_online);
DoctorRows thread_rows(const PoolThreads& threads, int64_t num_online);

// Report how many ranks this machine would start, and how other machines reach it.
nlohmann::ordered_json ranks_json(const RankFindings& findings);
DoctorRows rank_rows(const RankFindings& findings);

// NVIDIA cards; no rows without one. `checks` are check_nvidia_cards().
nlohmann::ordered_json cards_json(const NvidiaCards& found, const std::vector<Check>& checks);
DoctorRows card_rows(const NvidiaCards& found, const std::vector<Check>& checks);

}  // namespace tessera
