// The Pareto front of time and money.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tessera {

struct Cost {
  double hours = 0;
  double usd = 0;

  bool operator==(const Cost&) const = default;
};

// The points that no other point beats or equals in both (of equal ones the first), from the fastest to the
// cheapest.
inline std::vector<size_t> pareto_front(std::span<const Cost> points) {
  std::vector<size_t> order(points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return points[a].hours != points[b].hours ? points[a].hours < points[b].hours
                                              : points[a].usd < points[b].usd;
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || points[i].usd < points[front.back()].usd) front.push_back(i);
  }
  return front;
}

}  // namespace tessera
