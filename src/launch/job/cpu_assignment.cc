#include "launch/job/cpu_assignment.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Index of the NUMA node of a processor; one past the last if none lists it.
size_t numa_index(const NodeProcessors& node, int cpu) {
  const auto& nodes = node.numa_nodes;
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& n) { return contains(n.cpus, cpu); });
  return static_cast<size_t>(found - nodes.begin());
}

std::vector<std::vector<int>> cores_by_numa_node(const NodeProcessors& node) {
  std::vector<std::vector<int>> cores = node.limits.cores;
  std::stable_sort(cores.begin(), cores.end(), [&](const auto& a, const auto& b) {
    return numa_index(node, a.front()) < numa_index(node, b.front());
  });
  return cores;
}

// Runs of equal length, one per rank; the remainder stays unused.
std::vector<RankProcessors> divide(const std::vector<std::vector<int>>& units, size_t num_ranks) {
  std::vector<RankProcessors> ranks(num_ranks);
  const size_t units_per_rank = units.size() / num_ranks;
  for (size_t r = 0; r < num_ranks; ++r) {
    std::vector<int>& cpus = ranks[r].cpus;
    for (size_t i = r * units_per_rank; i < (r + 1) * units_per_rank; ++i) {
      cpus.insert(cpus.end(), units[i].begin(), units[i].end());
    }
    std::sort(cpus.begin(), cpus.end());
  }
  return ranks;
}

std::string message_for(const NodeProcessors& node, size_t num_ranks, const RankProcessors& rank,
                        double quota_per_rank) {
  const std::string allowed = node.limits.describe();
  if (num_ranks > node.limits.cpus.size()) {
    return fmt::format("{} ranks share {}: fewer ranks would be faster", num_ranks, allowed);
  }
  if (quota_per_rank < 1) {
    return fmt::format("{} with less than a processor's time{}: {}{}",
                       count_of(static_cast<int64_t>(num_ranks), "rank"), num_ranks == 1 ? "" : " each",
                       allowed, num_ranks == 1 ? "" : "; fewer ranks would be faster");
  }
  const size_t num_cores = node.limits.cores.size();
  if (num_ranks > num_cores) {
    return fmt::format("{} ranks on {}: some share a core with another; fewer ranks would be faster",
                       num_ranks, count_of(static_cast<int64_t>(num_cores), "core"));
  }
  const size_t cores_per_rank = num_cores / num_ranks;
  if (num_ranks == 1) return "";  // cannot be fewer
  if (cores_per_rank < 2 || rank.num_threads < 2) {
    return fmt::format("one core for each of {} ranks: {}; fewer ranks with more threads are usually faster",
                       num_ranks, allowed);
  }
  return "";
}

}  // namespace

NodeProcessors node_processors(const std::filesystem::path& root, const std::vector<int>& cpus) {
  return {cpu_limits(root, cpus), numa_nodes(root),
          std::max(std::ssize(cpus), std::ssize(online_cpus(root)))};
}

ProcessorAssignment assign_processors(const NodeProcessors& node, int num_ranks) {
  TESSERA_CHECK(num_ranks >= 1 && !node.limits.cpus.empty());
  const auto count = static_cast<size_t>(num_ranks);
  const std::vector<std::vector<int>> cores = cores_by_numa_node(node);
  ProcessorAssignment assignment;
  if (count <= cores.size()) {
    assignment.ranks = divide(cores, count);
  } else if (count <= node.limits.cpus.size()) {
    std::vector<std::vector<int>> hardware_threads;
    for (const auto& core : cores) {
      for (const int cpu : core) hardware_threads.push_back({cpu});
    }
    assignment.ranks = divide(hardware_threads, count);
  } else {
    assignment.ranks.assign(count, {.cpus = node.limits.cpus});
  }
  const double quota = node.limits.quota.value_or(static_cast<double>(node.limits.cpus.size()));
  const double quota_per_rank = quota / num_ranks;
  for (RankProcessors& rank : assignment.ranks) {
    if (count > node.limits.cpus.size()) break;
    rank.num_processors = std::ssize(rank.cpus);
    if (node.limits.quota) {
      // A single rank gets as many as a process without a launcher: a fractional limit is rounded up.
      const auto by_quota = static_cast<int64_t>(count == 1 ? std::ceil(quota) : std::floor(quota_per_rank));
      rank.num_processors = std::clamp<int64_t>(by_quota, 1, rank.num_processors);
    }
    rank.num_threads = std::min(std::max<int64_t>(1, std::ssize(cores) / num_ranks), rank.num_processors);
  }
  if (count > 1) assignment.message = message_for(node, count, assignment.ranks.front(), quota_per_rank);
  return assignment;
}

int num_numa_nodes(const NodeProcessors& node) {
  const auto has_allowed = [&](const NumaNode& n) {
    return std::any_of(n.cpus.begin(), n.cpus.end(),
                       [&](int cpu) { return contains(node.limits.cpus, cpu); });
  };
  return std::max(
      1, static_cast<int>(std::count_if(node.numa_nodes.begin(), node.numa_nodes.end(), has_allowed)));
}

}  // namespace tessera
