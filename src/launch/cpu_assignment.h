// Which processors the ranks of a node run on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "platform/cpu.h"
#include "platform/topology.h"

namespace tessera {

// What this node has for ranks.
struct NodeProcessors {
  CpuLimits limits;
  std::vector<NumaNode> numa_nodes;
  int64_t num_online = 1;  // of the machine, allowed or not
};
// `root` and `cpus` as in cpu_limits().
NodeProcessors node_processors(const std::filesystem::path& root = "/",
                               const std::vector<int>& cpus = usable_cpus());

struct RankProcessors {
  std::vector<int> cpus;       // the affinity mask of the rank
  int64_t num_threads = 1;     // worth starting in it
  int64_t num_processors = 1;  // of cpus that it can keep busy within its part of a cgroup limit
};

struct ProcessorAssignment {
  std::vector<RankProcessors> ranks;  // by local rank
  std::string message;                // one line, when ranks get little or have to share
};

// Whole cores, with all of their hardware threads, in equal numbers, NUMA node by NUMA node, so that a rank
// lies in one node where the numbers allow it. More ranks than cores get a hardware thread each, more ranks
// than processors share all. A cgroup limit on processor time is divided, too.
ProcessorAssignment assign_processors(const NodeProcessors& node, int num_ranks);

// Memory nodes with allowed processors, at least 1: the number of ranks that "auto" stands for.
int num_numa_nodes(const NodeProcessors& node);

}  // namespace tessera
