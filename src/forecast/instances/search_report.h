// The report of a search by `tessera plan`: which combinations, in which order, as a table and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forecast/instances/search.h"

namespace tessera {

enum class SearchOrder { kPareto, kPrice, kTime };

struct SearchView {
  SearchOrder order = SearchOrder::kPareto;  // kPareto shows only what nothing beats in time and money
  int64_t top = 20;
  std::optional<double> max_hours;
  std::optional<double> max_price;  // USD for the whole job
  bool spot = false;                // the price that counts
};

// The cost of the job.
double money_of(const Combination& combination, const SearchView& view);

// Combinations within the limits, that no other beats in hours and money, from the fastest to the cheapest.
std::vector<size_t> front_of(const SearchResult& result, const SearchView& view);
// Combinations to show, at most view.top.
std::vector<size_t> ranked(const SearchResult& result, const SearchView& view);
// The one to recommend of them: the first or, on the front, the one with the least hours x USD.
// nullopt if nothing is within the limits.
std::optional<size_t> best_of(const SearchResult& result, const SearchView& view);

// Lines of at most 80 columns: the job and the table of combinations; what does not fit and why, or "".
std::string table_text(const SearchResult& result, const SearchView& view);
std::string refusal_text(const SearchResult& result, const SearchView& view);
// All of it, and the time, money and memory of the best combination, which `commands` run.
std::string search_text(const SearchResult& result, const SearchView& view, const RunSpec& spec,
                        const ModelConfig& config, const std::string& commands);
// Why nothing fits, or nothing within the limits of the view, in one line; "" if something does.
std::string why_nothing_fits(const SearchResult& result, const SearchView& view);

// All combinations and refusals; sizes in bytes, times in seconds or hours. `command` runs the best one.
std::string search_json(const SearchResult& result, const SearchView& view, const std::string& command);

}  // namespace tessera
