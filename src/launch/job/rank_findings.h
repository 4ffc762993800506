// How many ranks this machine would start, and how other machines reach them: what a job finds when it
// starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/network/fabric/fabric_choice.h"
#include "comm/socket/address.h"
#include "launch/job/cpu_assignment.h"

namespace tessera {

struct RankFindings {
  int auto_ranks = 1;              // --nproc_per_node auto
  int64_t threads_per_rank = 1;    // per such rank
  std::string processors_message;  // why they get few processors; "" = they do not
  std::vector<InterfaceAddress> interfaces;
  LocalAddress told;                  // address given to others, unless another interface reaches node 0
  std::string told_error;             // set if GLOO_SOCKET_IFNAME names no interface; "" = `told` is valid
  std::optional<int64_t> open_files;  // limit per process; nullopt = none
  std::vector<FabricDomain> fabrics;  // what --fabric could name
  std::string fabrics_error;          // "" = `fabrics` is valid
};

// Leaves the fabrics out.
RankFindings examine_ranks(const NodeProcessors& node, const std::vector<InterfaceAddress>& interfaces);
// Adds the fabrics of this machine, for which it loads libfabric.
void examine_fabrics(RankFindings* findings);

}  // namespace tessera
