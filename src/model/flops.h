// Floating-point operations a model needs: the numerator of every TFLOPS and MFU figure shown.
//
// Counts the matrix products the math requires, one multiplication and one addition each, and nothing an
// implementation does beyond them: activation checkpointing's second forward pass, scores above the diagonal,
// padding, products recomputed in attention's backward.
//
//   layers     2 T W                       W: elements of the layers' matrices (q, k, v, o, gate, up, down)
//   attention  4 H E sum of pairs          a pair: a query and a key that it sees; 2 for q k, 2 for p v
//   lm_head    2 N V D                     N: tokens with a target; a tied embedding counts here, once
//   adapters   2 T W                       W: elements of A and B, if adapters are trained
//
// A backward pass takes twice as many: one product for the input's gradient and one for the weight's. A
// training step thus takes 6 per matrix parameter and token (Kaplan et al., Scaling Laws for Neural Language
// Models, 2020; Chowdhery et al., PaLM, 2022, appendix B) and 12 H E per pair; where
// adapters are trained the weights have no gradient, which leaves 4. The embedding is a lookup;
// norms, biases, rotary embedding, softmax and the optimizer are not counted.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_inputs.h"

namespace tessera {

// Pairs of a query and a key it sees, in one head and one row of `length` tokens: a query sees itself and all
// tokens before it, limited to the last `sliding_window` (0 = no limit).
double causal_pairs(int64_t length, int64_t sliding_window);

// The pairs of all sequences of an attention.
double attention_pairs(const AttentionInputs& inputs, int64_t sliding_window);

// The operations of one forward pass.
struct ModelFlops {
  double layers = 0;
  double attention = 0;
  double lm_head = 0;
  double adapters = 0;
  bool is_frozen = false;  // layers and head have no weight gradients

  double forward() const { return layers + attention + lm_head + adapters; }
  double forward_backward() const { return 3 * forward() - (is_frozen ? layers + lm_head : 0); }
};

}  // namespace tessera
