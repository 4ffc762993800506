// The network between the nodes of a simulated job, and how fast its ends are.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace tessera {

// Nodes in racks, each with one link to a core that never blocks. Speeds are of payload, in each direction.
struct Topology {
  int num_nodes = 1;
  int nodes_per_rack = 1;  // the last rack may have fewer; num_nodes: one rack, no uplink is used
  double nic_bytes_per_s = 1e9;
  // A rack's link carries nodes_per_rack * nic_bytes_per_s / oversubscription.
  double oversubscription = 1;
  // Most that a single connection reaches, whatever the links can carry.
  double flow_bytes_per_s = std::numeric_limits<double>::infinity();
  int connections = 4;        // between two nodes, all rails together
  double latency_s = 100e-6;  // from the last byte sent until the receiver continues
  // What the ends compute: each message and each byte, sent and received together, on one of num_threads.
  double message_s = 0;
  double gather_byte_s = 0;
  double reduce_byte_s = 0;
  double num_threads = 4;

  int num_racks() const { return (num_nodes + nodes_per_rack - 1) / nodes_per_rack; }
  double uplink_bytes_per_s() const { return nodes_per_rack * nic_bytes_per_s / oversubscription; }
};

// The slowdowns of all nodes: log-normal with median 1 and this relative spread, drawn from a counter-based
// generator, so that node k has the same one in clusters of any size.
std::vector<double> drawn_slowdowns(int num_nodes, double spread, uint64_t seed);

}  // namespace tessera
