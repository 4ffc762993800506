#include "forecast/simulation/fair_share.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

void FairSharing::solve(std::span<const FlowBundle* const> bundles, std::vector<FairShare>* shares) {
  constexpr double kOpen = -1;
  left_ = capacities_;
  demand_.assign(capacities_.size(), 0);
  num_open_.assign(capacities_.size(), 0);
  users_.resize(capacities_.size());
  for (const size_t resource : used_) users_[resource].clear();
  used_.clear();
  shares->assign(bundles.size(), {kOpen, FairShare::kOwnCap});
  by_cap_.clear();
  for (size_t i = 0; i < bundles.size(); ++i) {
    by_cap_.push_back(i);
    for (const auto& [resource, amount] : bundles[i]->uses) {
      if (users_[resource].empty()) used_.push_back(resource);
      users_[resource].push_back(i);
      demand_[resource] += amount;
      ++num_open_[resource];
    }
  }
  std::ranges::stable_sort(by_cap_, {}, [&](size_t i) { return bundles[i]->cap; });

  size_t num_open = bundles.size();
  const auto fix = [&](size_t i, double rate, size_t limit) {
    (*shares)[i] = {rate, limit};
    --num_open;
    for (const auto& [resource, amount] : bundles[i]->uses) {
      left_[resource] = std::max(0.0, left_[resource] - amount * rate);
      demand_[resource] -= amount;
      --num_open_[resource];
    }
  };
  size_t next_cap = 0;
  while (num_open > 0) {
    double lowest = std::numeric_limits<double>::infinity();
    size_t tightest = FairShare::kOwnCap;
    for (const size_t resource : used_) {
      if (num_open_[resource] == 0) continue;
      const double share = left_[resource] / demand_[resource];
      if (share < lowest) {
        lowest = share;
        tightest = resource;
      }
    }
    while ((*shares)[by_cap_[next_cap]].rate != kOpen) ++next_cap;
    const size_t capped = by_cap_[next_cap];
    if (bundles[capped]->cap <= lowest) {
      TESSERA_CHECK(bundles[capped]->cap < std::numeric_limits<double>::infinity(), "flow {} has no limit",
                    capped);
      fix(capped, bundles[capped]->cap, FairShare::kOwnCap);
      continue;
    }
    for (const size_t i : users_[tightest]) {
      if ((*shares)[i].rate == kOpen) fix(i, lowest, tightest);
    }
  }
}

}  // namespace tessera
