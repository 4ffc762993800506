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

// The flags of `tessera train` that a layout decides, and those that set this one: "--zero_stage 3".
bool is_layout_flag(const std::string& name);
std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows);
// What of a layout the flags on the command line or in a file leave no choice about: stage, schedule and
// checkpointing.
SearchOptions asked_options(const FlagTable& table, const RunSpec& spec);

struct PlanSearch {
  std::vector<std::string> instances;  // names and patterns; empty: all
  int64_t max_nodes = 16;
  SearchView view;
  std::string plot;  // a file for a picture, "" = none
};

// Searches and shows what was found. Error(kBadConfig) if nothing fits.
void search_machines(const PlanSearch& search, const PlanRequest& request, const FlagTable& table);

}  // namespace tessera
