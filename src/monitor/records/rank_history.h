// The compute times of each rank over the run: which ranks lag, and since when.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace tessera {

// Keeps at most kMaxSpans means over equally many steps; when they are full, neighbours are merged.
class RankHistory {
 public:
  static constexpr int64_t kMaxSpans = 48;

  // Seconds of each rank in a step. Another number of ranks than before starts over: the job has changed.
  void add(int64_t step, std::span<const double> compute_s);

  // {"first_step": [of each span], "compute_s": [[of each rank], of each span], "last_s": [of each rank]};
  // null without ranks.
  nlohmann::ordered_json json() const;

 private:
  struct Span {
    int64_t first_step = 0;
    int64_t num_steps = 0;
    std::vector<double> sum_s;  // by rank
  };
  std::vector<Span> spans_;
  int64_t steps_per_span_ = 1;
  std::vector<double> last_s_;
};

}  // namespace tessera
