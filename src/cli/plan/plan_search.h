// A search for machines, as `tessera plan` shows it.
#pragma once

#include <cstdint>
#include <optional>
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
SearchOptions asked_options(const FlagTable& table, const RunSpec& args);

inline constexpr int64_t kMaxPlannedNodes = 4096;

// The flags of a search, and the search itself.
class SearchFlags {
 public:
  // As a section of its own.
  void declare(FlagTable* table, PlanRequest* request);
  // The first of them that is set, "" = none is.
  static std::string first_given(const FlagTable& table);
  // Whether the catalogue is searched; otherwise one kind of machine is shown. Error(kUsage) for flags of
  // both.
  bool is_wanted(const PlanRequest& request, const FlagTable& table) const;
  const std::optional<double>& max_hours() const { return max_hours_; }
  const std::optional<double>& max_price() const { return max_price_; }
  // Searches and shows what was found. Error(kBadConfig) if nothing fits.
  void search(PlanRequest* request, FlagTable* table) const;

 private:
  std::vector<std::string> instances_;
  int64_t max_nodes_ = 16;
  std::string sort_ = "pareto";
  int64_t top_ = 20;
  std::optional<double> max_hours_;
  std::optional<double> max_price_;
  bool spot_ = false;
};

}  // namespace tessera
