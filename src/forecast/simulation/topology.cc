#include "forecast/simulation/topology.h"

#include <cmath>

#include "base/rng.h"

namespace tessera {

std::vector<double> drawn_slowdowns(int num_nodes, double spread, uint64_t seed) {
  const CounterRng random(seed, hash_name("slowdown of nodes"));
  std::vector<double> slowdowns;
  for (int node = 0; node < num_nodes; ++node) {
    slowdowns.push_back(std::exp(spread * static_cast<double>(random.normal(static_cast<uint64_t>(node)))));
  }
  return slowdowns;
}

}  // namespace tessera
