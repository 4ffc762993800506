// Slurm's host list notation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// "cn[08-10,12],gpu-a,r[1-2]n[1-2]" expands to cn08 cn09 cn10 cn12 gpu-a r1n1 r1n2 r2n1 r2n2, in this order.
// Error(kBadConfig) names `variable`.
std::vector<std::string> expand_node_list(std::string_view list, const std::string& variable);

// The number of tasks on each node: "4(x2),3" expands to 4 4 3.
std::vector<int> expand_tasks_per_node(std::string_view list, const std::string& variable);

}  // namespace tessera
