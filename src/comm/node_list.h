// Slurm's notation for lists of hosts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// "cn[08-10,12],gpu-a,r[1-2]n[1-2]" is cn08 cn09 cn10 cn12 gpu-a r1n1 r1n2 r2n1 r2n2, in this order.
// Error(kBadConfig) names `variable`.
std::vector<std::string> expand_node_list(std::string_view list, const std::string& variable);

// "4(x2),3" is 4 4 3: the tasks of each node.
std::vector<int> expand_tasks_per_node(std::string_view list, const std::string& variable);

}  // namespace tessera
