#pragma once

#include "base/choice.h"

namespace tessera {

// The number of times a byte of the model's files is read.
enum class LoadOnce {
  kPerNode,     // once on each node that keeps the weights, by one of its ranks
  kPerCluster,  // by the owning rank; the others receive it over the network
};
constexpr auto choice_words(LoadOnce) {
  using enum LoadOnce;
  return std::to_array<Word<LoadOnce>>({{"per_node", kPerNode}, {"per_cluster", kPerCluster}});
}

}  // namespace tessera
