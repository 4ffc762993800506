// The instance types that the NodePool of `tessera deploy cluster` starts.
#pragma once

#include <string>
#include <vector>

#include "forecast/instances/catalogue.h"

namespace tessera {

// Whether the pool starts nodes of this type: with AMX, 8xlarge to 48xlarge, because smaller ones spend too
// much of a step on the network and larger ones are hard to get, and not bare metal. With `on_card` it is the
// pool of nodes with cards, which has all types with any.
bool in_node_pool(const Instance& instance, bool on_card = false);

// Families and sizes ("16xlarge") in the order of the catalogue.
struct PoolTypes {
  std::vector<std::string> families;
  std::vector<std::string> sizes;
};

// The types of the pool. With `efa` only sizes that have an EFA card in every family, because Karpenter
// combines any family with any size.
PoolTypes types_of_node_pool(const std::vector<Instance>& catalogue, bool on_card, bool efa);

}  // namespace tessera
