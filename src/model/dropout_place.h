// The places of a model at which training drops elements (DropoutRates of its config).
#pragma once

#include <cstdint>

#include "kernels/dropout/dropout.h"
#include "ops/ops.h"

namespace tessera {

enum class DropoutPlace : uint64_t {
  kEmbedding = 1,
  kAttention,
  kAttentionOutput,
  kCrossAttention,
  kCrossAttentionOutput,
  kMlpHidden,
  kMlpOutput,
  kStackOutput,
};

// What a pass draws its dropout from: numbers of the tokens of its batch.
struct PassDropout {
  uint64_t seed = 0;
  std::span<const uint64_t> tokens;  // [T]
  float of_adapters = 0;             // the probability of dropping an input of an adapter
};

// The site of a place of a layer.
constexpr uint64_t dropout_site(uint64_t seed, DropoutPlace place, int64_t layer) {
  constexpr uint64_t kPlaces = 16, kOddStep = 0x9E3779B97F4A7C15;
  return seed + (static_cast<uint64_t>(layer) * kPlaces + static_cast<uint64_t>(place)) * kOddStep;
}

// x = what is left of it.
inline void drop_in_place(Ops& ops, const Dropout& which, TensorView x_TD) {
  if (which.drops()) ops.dropout(x_TD, which, x_TD, Update::kOverwrite);
}

// The gradient of what was dropped, in `memory_TD`; dy_TD itself if nothing was.
inline ConstTensorView dropped_gradient(Ops& ops, const Dropout& which, ConstTensorView dy_TD,
                                        TensorView memory_TD) {
  if (!which.drops()) return dy_TD;
  ops.dropout(dy_TD, which, memory_TD, Update::kOverwrite);
  return memory_TD;
}

}  // namespace tessera
