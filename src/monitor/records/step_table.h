// The values of a run's steps by name, as metrics.jsonl has them, and thinned selections of them for charts.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace tessera {

class StepTable {
 public:
  // `line` is a line of metrics.jsonl: an object with an integer "step". Keeps its numbers (true and false as
  // 1 and 0) and adds elapsed_s and total_tokens, the sums of step_time_s and num_tokens so far. Rows of this
  // and later steps are dropped first: the run resumed before them.
  void add(const nlohmann::ordered_json& line);

  int64_t num_rows() const { return std::ssize(steps_); }
  int64_t first_step() const { return steps_.empty() ? 0 : steps_.front(); }
  int64_t last_step() const { return steps_.empty() ? 0 : steps_.back(); }
  // NaN if the column has no value there, or does not exist.
  double value(const std::string& column, int64_t row) const;

  // Rows of the steps `first` to `last`, at most max_rows (at least 2) of them, ascending. A longer range
  // is cut into pieces of equally many rows, and of each piece the rows are kept in which any column has its
  // smallest or largest value: no spike is lost.
  std::vector<int64_t> thinned(int64_t first, int64_t last, int64_t max_rows) const;

  // {"num_steps": rows in the range, "step": [...], "columns": {"loss": [...], ...}} of thinned(); null where
  // a column has no value or one that is not finite.
  nlohmann::ordered_json json(int64_t first, int64_t last, int64_t max_rows) const;

  // Keeps thinned() of all rows.
  void thin(int64_t max_rows);

 private:
  std::vector<int64_t> steps_;  // ascending
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>, std::less<>> columns_;  // by name, num_rows() values each
};

}  // namespace tessera
