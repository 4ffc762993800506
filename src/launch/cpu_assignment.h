// Which processors the ranks of a node run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/cpu.h"
#include "platform/topology.h"

namespace tessera {

// What this node has for ranks. Filled in by hand in tests.
struct NodeProcessors {
  CpuLimits limits;
  std::vector<NumaNode> numa_nodes;
  std::vector<std::vector<int>> cores;  // hardware threads of each core, of those in limits.cpus
  int64_t num_online = 1;               // of the machine, allowed or not
};
NodeProcessors node_processors();

struct RankProcessors {
  std::vector<int> cpus;    // the affinity mask of the rank
  int64_t num_threads = 1;  // worth starting in it
};

struct ProcessorAssignment {
  std::vector<RankProcessors> ranks;  // by local rank
  std::string message;                // one line, when ranks get little or have to share
};

// Whole cores in equal numbers, NUMA node by NUMA node, so that a rank lies in one node and never shares a
// core where the numbers allow it. With more ranks than processors all of them share all. A cgroup limit on
// processor time is divided, too.
ProcessorAssignment assign_processors(const NodeProcessors& node, int num_ranks);

// Memory nodes with allowed processors, at least 1: the number of ranks that "auto" stands for.
int num_numa_nodes(const NodeProcessors& node);

}  // namespace tessera
