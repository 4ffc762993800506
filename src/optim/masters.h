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

// Calls body(masters, gradient) with the types that the parameter has; `gradient` is const float* or const
// bf16*.
template <typename Body>
void with_types(const WholeParameter& parameter, const Body& body) {
  const auto with_masters = [&](auto gradient) {
    if (parameter.weights.dtype() == DType::kF32) {
      body(F32Masters{parameter.weights.as<float>()}, gradient);
    } else {
      body(Bf16Masters{parameter.weights.as<bf16>(), parameter.remainders}, gradient);
    }
  };
  if (parameter.gradient.dtype() == DType::kF32) {
    with_masters(parameter.gradient.as<float>());
  } else {
    with_masters(parameter.gradient.as<bf16>());
  }
}

}  // namespace tessera
