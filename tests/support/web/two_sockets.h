// For tests: the processors of a machine with two sockets.
#pragma once

#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "fake_machine.h"
#include "launch/job/cpu_assignment.h"

namespace tessera {

inline std::vector<int> range(int first, int last) {
  std::vector<int> cpus(static_cast<size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

// Two sockets of `cores` cores each; the second hyper-thread of core c is 2 * cores + c, as Linux numbers
// them on Xeons.
inline NodeProcessors two_sockets(int cores, bool hyper_threads, std::optional<double> quota = {}) {
  static std::map<std::pair<int, bool>, NodeProcessors> made;
  NodeProcessors& node = made[{cores, hyper_threads}];
  if (node.limits.cpus.empty()) {
    const MachineShape shape = {2, cores, hyper_threads ? 2 : 1};
    node = node_processors(FakeMachine(shape).root(), shape.cpus());
  }
  NodeProcessors limited = node;
  limited.limits.quota = quota;
  return limited;
}

}  // namespace tessera
