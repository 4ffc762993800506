// LoRA adapters on a product of a layer, forward and backward.
//
//   forward:   (1) z = x' A^T, x' = dropout(x)     (2) y += z E,  E the blocks scale * B^T
//   backward:  (2) dE = z^T dy, dz = dy E^T         (1) dA = dz^T x', dx += dropout(dz A)
// The products are those of kernels/lora/lora.h.
//
// The product itself, y = x W^T, has been computed by then; its weight has no gradient. The modules whose
// weights are fused into one product read the same x' (PEFT draws a mask for each of them).
#pragma once

#include <cstdint>
#include <vector>

#include "formats/huggingface/lora_config.h"
#include "kernels/dropout/dropout.h"
#include "kernels/lora/lora.h"
#include "model/model_tensor.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

// The adapters of a product, weights or gradients: their A as one matrix, and the B of each module. Empty: it
// has none.
template <typename View>
struct LoraTensors {
  struct Module {
    View b_NR;
    LoraBlock block;  // of the weights alone
  };
  View a_RK;
  std::vector<Module> modules;
  // Set for the weights, not for the gradients.
  int64_t rank = 0;   // R
  uint64_t site = 0;  // of Dropout

  bool empty() const { return modules.empty(); }
};
using LoraWeights = LoraTensors<ConstTensorView>;
using LoraGrads = LoraTensors<TensorView>;

// The largest sizes of any product with adapters, and the products of the adapters themselves: bounds the
// scratch.
struct LoraLimits {
  int64_t rank = 0;    // R; 0 = there are no adapters
  int64_t block = 0;   // elements of E
  int64_t inputs = 0;  // K
  bool dropout = false;
  std::vector<LinearShape> products;
};

// The tensors of the adapters that `config` puts on a model with these tensors, in its groups and in the
// views that its tensors name. Error(kBadConfig) for a module that no tensor has.
std::vector<ModelTensor> lora_tensors(std::span<const ModelTensor> tensors, const LoraConfig& config,
                                      LoraLimits* limits);

// Needed only while a block runs, and shared by its products.
struct LoraScratch {
  TensorView z;                      // flat, of T R elements
  TensorView dz;                     // training
  TensorView e;                      // flat, of R N elements
  TensorView de;                     // F32, training
  TensorView dropped;                // flat, of T K elements; training with dropout
  const Dropout* dropout = nullptr;  // of this pass, its site the seed; null: none
};
LoraScratch allocate_lora_scratch(Arena& arena, const LoraLimits& limits, DType dtype, int64_t num_tokens,
                                  bool training);

// y += the output of the adapters.
void lora_forward(Ops& ops, const LoraWeights& weights, ConstTensorView x_TK, const LoraScratch& scratch,
                  TensorView y_TN);

// The backward pass in three parts, because blocks overwrite x and dx at different times. First dz, left in
// the scratch; then, in any order, dx and the gradients of A and B, which take x.
void lora_backward_output(Ops& ops, const LoraWeights& weights, ConstTensorView dy_TN,
                          const LoraScratch& scratch);
void lora_backward_input(Ops& ops, const LoraWeights& weights, const LoraScratch& scratch, TensorView dx_TK);
void lora_backward_weights(Ops& ops, const LoraWeights& weights, const LoraGrads& grads, Update update,
                           ConstTensorView dy_TN, ConstTensorView x_TK, const LoraScratch& scratch);

}  // namespace tessera
