// The processors that the ranks of a node run on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "platform/cpu.h"
#include "platform/topology.h"

namespace tessera {

// The processors this node has for ranks.
struct NodeProcessors {
  CpuLimits limits;
  std::vector<NumaNode> numa_nodes;
  int64_t num_online = 1;             // processors of the machine, allowed or not
  std::optional<int> num_cards = {};  // NVIDIA cards; empty: to be asked for where they matter
};
// `root` and `cpus` as in cpu_limits().
NodeProcessors node_processors(const std::filesystem::path& root = "/",
                               const std::vector<int>& cpus = usable_cpus());

struct RankProcessors {
  std::vector<int> cpus;       // the affinity mask of the rank
  int64_t num_threads = 1;     // threads worth starting in the rank
  int64_t num_processors = 1;  // those of cpus it can keep busy within its share of a cgroup limit
};

struct ProcessorAssignment {
  std::vector<RankProcessors> ranks;  // by local rank
  std::string message;                // one line if ranks get little or have to share
};

// Gives each rank the same number of whole cores, with all their hardware threads, NUMA node by NUMA node, so
// that a rank stays within one node where the numbers allow. If there are more ranks than cores, each gets
// one hardware thread; if there are more ranks than processors, they share all of them. A cgroup limit on
// processor time is divided as well.
ProcessorAssignment assign_processors(const NodeProcessors& node, int num_ranks);

// Number of NUMA nodes with allowed processors, at least 1: the number of ranks that "auto" stands for.
int num_numa_nodes(const NodeProcessors& node);

}  // namespace tessera
