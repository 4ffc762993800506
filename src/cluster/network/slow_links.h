// Finds links and nodes that are slower than others that should be alike.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// A figure for every link, by sender and receiver.
class LinkMatrix {
 public:
  explicit LinkMatrix(int num_nodes = 0)
      : num_nodes_(num_nodes), values_(static_cast<size_t>(num_nodes) * static_cast<size_t>(num_nodes)) {}
  int num_nodes() const { return num_nodes_; }
  double& at(int from, int to) { return values_[place(from, to)]; }
  double at(int from, int to) const { return values_[place(from, to)]; }  // 0 = not measured
  std::vector<double>& values() { return values_; }

 private:
  size_t place(int from, int to) const { return static_cast<size_t>(from * num_nodes_ + to); }
  int num_nodes_;
  std::vector<double> values_;
};

struct SlowLink {
  int from = 0;
  int to = 0;
  double value = 0;
};
// More than half of a node's links in one direction are slow, and at least two.
struct SlowNode {
  int node = 0;
  bool sends = true;  // otherwise receives
  double value = 0;   // median of its slow links in that direction
};
struct SlowLinks {
  double typical = 0;           // median over nodes of the fastest link of each
  std::vector<SlowNode> nodes;  // worst first
  std::vector<SlowLink> links;  // those that no slow node explains
  bool empty() const { return nodes.empty() && links.empty(); }
};

// The links below `min_share` of the typical one, or below `min_value`.
std::vector<SlowLink> links_below(const LinkMatrix& speeds, double min_share, double min_value = 0);

// Latencies as speeds, so that the same rules find those that are too long: from three times the typical one
// (min_share 1 / kSlowLatencyFactor) and half a millisecond on.
inline constexpr double kSlowLatencyFactor = 3;
LinkMatrix rates_of_latencies(const LinkMatrix& latency_us);

// Links below `min_share` of the typical one, or below `min_value`, are slow. A slow node leaves the fastest
// links of the others as they are, so the typical link is a sound one while most nodes are.
SlowLinks find_slow_links(const LinkMatrix& speeds, double min_share, double min_value = 0);

// Pairs in rounds: in each of num_rounds() of a job every node has at most one partner, and after all of them
// each pair has met once. -1: none.
int num_rounds(int num_nodes);
int partner_of(int node, int round, int num_nodes);

}  // namespace tessera
