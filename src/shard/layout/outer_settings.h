// Settings of training in which every node takes many steps on its own before nodes exchange their weights:
// DiLoCo (Douillard et al., DiLoCo: distributed low-communication training of language models, 2023), with
// its fragments (Douillard et al., Streaming DiLoCo with overlapping communication, 2025).
#pragma once

#include <cstdint>

namespace tessera {

struct OuterSettings {
  int64_t sync_every = 0;     // updates of a node between two exchanges of the same weights
  int64_t num_fragments = 1;  // exchanged one after another, evenly distributed over these updates
  int64_t sync_delay = 0;     // updates between what is sent and the use of the result
  double update_alpha = 0;    // share of a node's own weights in what it continues with
  // The outer optimizer: SGD with Nesterov momentum.
  double learning_rate = 0.7;
  double momentum = 0.9;
};

}  // namespace tessera
