// Max-min fair rates: what TCP flows tend to where they share links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tessera {

// Flows that are alike: they run between the same kinds of places and so get the same rate.
struct FlowBundle {
  // A unit of this bundle's rate takes `amount` of the resource: how many of its flows use it, or seconds of
  // a processor per byte.
  struct Use {
    size_t resource;
    double amount;
  };
  std::vector<Use> uses;
  double cap = std::numeric_limits<double>::infinity();  // of a flow's rate
};

struct FairShare {
  static constexpr size_t kOwnCap = static_cast<size_t>(-1);
  double rate = 0;
  size_t limit = kOwnCap;  // the resource that keeps the rate from being higher, or its own cap
};

// The rates at which no flow can become faster without a slower one losing (progressive filling: Bertsekas
// and Gallager, "Data Networks", 6.5.2). Every bundle uses a resource or has a cap; capacities are above 0.
// Fills `shares`, by bundle.
class FairSharing {
 public:
  explicit FairSharing(std::vector<double> capacities) : capacities_(std::move(capacities)) {}

  void solve(std::span<const FlowBundle* const> bundles, std::vector<FairShare>* shares);

 private:
  std::vector<double> capacities_;
  // Scratch, by resource.
  std::vector<double> left_, demand_;
  std::vector<std::vector<size_t>> users_;
  std::vector<int64_t> num_open_;
  std::vector<size_t> used_;
  std::vector<size_t> by_cap_;
};

}  // namespace tessera
