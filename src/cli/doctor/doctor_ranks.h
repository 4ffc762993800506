// What `tessera doctor` says about ranks: how many this machine would start, and how other machines reach it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launch/job/rank_findings.h"

namespace tessera {

nlohmann::ordered_json ranks_json(const RankFindings& findings);

// Names and values, to be printed below each other.
std::vector<std::pair<std::string, std::string>> rank_rows(const RankFindings& findings);

}  // namespace tessera
