// Discrete-event simulation of training steps on all nodes of a cluster.
//
// Every node runs the same program (step_program.h). A collective is what comm/network does: each member
// sends each other member's part over `connections` sockets, all peers at once as far as the kernel's buffers
// reach, so a pair of nodes is one flow; flows share network cards, rack uplinks and processors max-min
// fairly, and two nodes send data once both are in the operation. A node runs the operations of a lane
// one after another; one is over when everything it sends and receives has arrived.
//
// Nodes that behave alike are simulated as one: all of them if no node differs from another. Up to
// kMaxExactNodes nodes that differ are simulated one by one; of more, the slowest is, and the others by
// groups of similar speed that are spread evenly over the racks. A last rack with fewer nodes counts as an
// average one if nodes are simulated together.
//
// Not modelled: TCP's slow start, losses and incast; that processors which move data do not compute (measured
// computation contains it); the order in which a lane visits its peers.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "forecast/simulation/step_program.h"

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
  // Endpoint computation per message and per byte, sent and received together, on one of num_threads.
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

inline constexpr int kMaxExactNodes = 48;

// The cause of a share of a node's time.
enum class Bottleneck {
  kCompute,
  kNic,        // waiting for data that a node's network card limits
  kUplink,     // ... that a rack's uplink limits
  kFlow,       // ... that the cap of single connections limits
  kProcessor,  // ... that the ends' handling of messages and bytes limits
  kLatency,    // ... that is on the way
  kOthers      // waiting for nodes that are slower
};
inline constexpr int kNumBottlenecks = 7;
std::string_view bottleneck_name(Bottleneck bottleneck);

// A step in the steady state; where nodes train on their own, the mean of those between two exchanges.
struct SimulatedStep {
  double step_s = 0;
  double seconds[kNumBottlenecks] = {};  // of the most common kind of node: these add up to step_s
  double network_s = 0;                  // with a collective under way
  double node_sent_bytes = 0;            // payload; as many are received
  double uplink_sent_bytes = 0;          // of a rack, on average
  bool is_exact = true;                  // no nodes that differ were simulated as one

  double of(Bottleneck kind) const { return seconds[static_cast<int>(kind)]; }
  // The largest cause besides computation; kCompute if that is less than 2 % of the step.
  Bottleneck bottleneck() const;
};

// `slowdowns`: by node. Measured are the program's steps that stand for others; the first does not.
SimulatedStep simulate_steps(const Topology& topology, const StepProgram& program,
                             const std::vector<double>& slowdowns);

}  // namespace tessera
