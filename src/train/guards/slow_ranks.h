// Finds stragglers, ranks that hold up the others step after step: a processor that is throttled, shared or
// broken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct SlowRankOptions {
  int64_t window = 20;       // steps evaluated together
  int64_t least_steps = 10;  // before anything is reported
  double least_s = 0.5;      // compute time of the median rank in these steps; less is noise
  double slow = 1.4;         // times the median time per work makes a rank slow
  double recovered = 1.2;    // below this it no longer is
};

// A rank has become slow, or has recovered.
struct SlowRankChange {
  int rank;
  bool is_slow;
  double times_median;  // its time per work over the median of all ranks
};

class SlowRankDetector {
 public:
  SlowRankDetector(int world_size, const SlowRankOptions& options);

  // Records one step: by rank, how much it computed (any unit; 0 = it had no rows) and how long that took,
  // excluding waiting. Returns the same changes on every rank that is given the same numbers.
  std::vector<SlowRankChange> observe(std::span<const double> work, std::span<const double> compute_s);

  // Time per work relative to the median, by rank, over the window; 1 if unknown.
  std::span<const double> times_median() const { return times_median_; }

 private:
  struct Sums {
    double work = 0;
    double compute_s = 0;
  };
  void compare();

  SlowRankOptions options_;
  int64_t world_size_;
  std::vector<Sums> steps_;              // step n, rank r at (n % window) * world_size + r
  std::vector<Sums> sums_;               // by rank
  std::vector<double> seconds_, paces_;  // scratch of compare()
  std::vector<double> times_median_;
  std::vector<bool> is_slow_;
  int64_t num_steps_ = 0;
};

}  // namespace tessera
