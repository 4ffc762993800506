// What ranks that share rows exchange around an operation of attention (context/context_ops.h).
#pragma once

#include <cstdint>
#include <vector>

#include "forecast/time/op_costs.h"

namespace tessera {

// Bytes per rank of each exchange of operands, results or gradients; none if `work`, of all tokens and one
// rank's heads, is not attention.
std::vector<int64_t> exchanges_of_heads(const OpWork& work);

// Seconds of an exchange of `bytes` per rank within a node: they are read and written once when packed and
// once when unpacked, and the ranks wait for one another.
double exchange_of_heads_seconds(int64_t bytes, DType dtype, const RankShare& share, OpCosts& op_costs);

}  // namespace tessera
