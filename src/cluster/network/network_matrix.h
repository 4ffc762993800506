// Bandwidth and latency between all pairs of nodes, measured by the ranks of a job.
#pragma once

#include <string>
#include <vector>

#include "cluster/network/slow_links.h"
#include "comm/communicator.h"

namespace tessera {

struct NetworkMatrixOptions {
  double seconds = 0.5;    // for each direction of each link
  int max_rounds = 0;      // a node meets one other in each; 0 = all of them
  int connections = 4;     // of Tessera's transport
  double min_share = 0.6;  // links below this share of the typical one are measured again
  double min_gbit_per_s = 0;
  bool plain_tcp = true;  // measure one plain TCP flow as well
};

struct NetworkMatrix {
  std::vector<std::string> hosts;  // by node
  LinkMatrix gbit_per_s;           // payload through NetworkGroup, as in training
  LinkMatrix tcp_gbit_per_s;       // one plain TCP flow; 0 if not measured
  LinkMatrix latency_us;           // half of a round trip of 8 bytes through NetworkGroup
  LinkMatrix unreachable;          // 1: no connection, or it broke
};

// Collective. The first rank of each node measures, in rounds of disjoint pairs, while the others wait. All
// ranks get the whole result. A pair that cannot connect is marked and does not fail the job.
NetworkMatrix measure_network(Communicator& comm, const NetworkMatrixOptions& options);

}  // namespace tessera
