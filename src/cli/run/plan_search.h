// A search for machines, as `tessera plan` shows it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "arguments/arguments.h"
#include "base/flags.h"
#include "forecast/instances/search_report.h"

namespace tessera {

// The flags of `tessera train` that a layout decides, and those that set this one: "--zero_stage 3".
bool is_layout_flag(const std::string& name);
std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows);
// What of a layout the flags on the command line or in a file leave no choice about: stage, schedule and
// checkpointing.
SearchOptions asked_options(const FlagTable& table, const RunSpec& args);

class PlanSearch {
 public:
  // `args` must be resolved for one rank and, like `config`, outlive this.
  PlanSearch(const RunSpec& args, const ModelConfig& config, const JobSize& job,
             const std::vector<Instance>& instances, const SearchOptions& options, const SearchView& view);

  // The command line of the best combination on its first node, with the flags `given` that do not belong to
  // the layout; "" if nothing fits.
  std::string command(const std::vector<const Flag*>& given, const std::string& preset) const;
  // `preset` is the name of a model that does not exist yet, or "".
  std::string text(const std::string& command, const std::string& preset) const;
  std::string json(const std::string& command) const { return search_json(result_, view_, command); }
  void draw(const std::string& path) const;
  // Error(kBadConfig) if nothing fits, or nothing within the limits of the view.
  void check_any_fits() const;

 private:
  const RunSpec& args_;
  const ModelConfig& config_;
  SearchView view_;
  SearchResult result_;
};

}  // namespace tessera
