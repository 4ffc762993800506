// The float32 master weights of a parameter, element by element, for updates in plain loops.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "optim/optimizer.h"

namespace tessera {

// Weights in float32 ...
struct F32Masters {
  float* weight;

  float load(int64_t i) const { return weight[i]; }
  void store(int64_t i, float master) const { weight[i] = master; }
};

// ... or in BF16, with their remainders.
struct Bf16Masters {
  bf16* weight;
  int16_t* remainder;

  float load(int64_t i) const { return join_master(weight[i], remainder[i]); }
  void store(int64_t i, float master) const {
    weight[i] = master_weight(master);
    remainder[i] = master_remainder(master);
  }
};

// Calls body(masters) for those of a block.
template <typename Body>
void with_masters(const WholeBlock& block, const Body& body) {
  if (block.weights.dtype() == DType::kF32) {
    body(F32Masters{block.weights.as<float>()});
  } else {
    body(Bf16Masters{block.weights.as<bf16>(), block.remainders});
  }
}

// Calls body(gradient) with the gradients of a parameter from an element on, as const float* or const bf16*.
template <typename Body>
void with_gradient(const WholeParameter& parameter, int64_t begin, const Body& body) {
  if (parameter.gradient.dtype() == DType::kF32) {
    body(parameter.gradient.as<float>() + begin);
  } else {
    body(parameter.gradient.as<bf16>() + begin);
  }
}

}  // namespace tessera
