// A search for the cloud instances of a run: `tessera plan search`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flags.h"
#include "cli/plan/plan_request.h"
#include "forecast/instances/search_report.h"
#include "settings/run_settings.h"

namespace tessera {

struct PlanSearch {
  std::vector<std::string> instances;  // names and patterns; empty: all
  int64_t max_nodes = 16;
  SearchView view;
  std::string plot;  // a file for a picture, "" = none
};

// Searches and shows what was found. Error(kBadConfig) if nothing fits.
void search_machines(const PlanSearch& search, const PlanRequest& request, const FlagTable& table);

}  // namespace tessera
