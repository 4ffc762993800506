// Everything a model states about each of its tensors, once. Parameter layout, binding, packing, the limits
// of the products and floating-point operations follow from this list.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/gemm/linear_weight.h"
#include "tensor/tensor_view.h"

namespace tessera {

template <typename View>
struct LoraTensors;  // model/lora.h

// The role of a parameter in the model.
enum class ParameterKind {
  kEmbedding,  // looked up by token id; also the LM head if they are tied
  kMatrix,     // multiplies every token, in a layer
  kRouter,     // multiplies every token, in a layer; never quantized, packed or adapted
  kLmHead,     // multiplies the tokens that have a target
  kNorm,
  kBias,
  kPositionBias,  // [buckets, heads], added to scores
  kSinks,         // [heads], logits in the softmax of attention
  kLoraA,         // [rank, in] of an adapter
  kLoraB,         // [out, rank]
};
inline bool is_vector(ParameterKind kind) {
  return kind == ParameterKind::kNorm || kind == ParameterKind::kBias || kind == ParameterKind::kSinks;
}

// Of a parameter that files have as a slice of a larger tensor: element `index` of its first dimension. No
// other tensor of files has three dimensions.
struct FileSlice {
  std::string tensor = {};
  int64_t index = 0;
  int64_t count = 0;  // 0: files have the parameter on its own, by its name
};
// The name of that parameter.
inline std::string slice_name(const std::string& tensor, int64_t index) {
  return tensor + "." + std::to_string(index);
}

struct ParameterPart {
  std::string name;            // "model.layers.0.mlp.gate_proj.weight"
  std::vector<int64_t> shape;  // [out, in] for linear layers
  FileSlice slice = {};
};

// One tensor as operations take it: a parameter, or several stacked along their first dimension.
struct ModelTensor {
  int64_t group;  // Parameter::group
  ParameterKind kind;
  std::vector<ParameterPart> parts;
  // The views that operations read and write it by. A LinearWeight may have packed forms.
  std::variant<ConstTensorView*, LinearWeight*> weight;
  TensorView* gradient;
  // Where a matrix of a layer may have adapters; null: it has none.
  LoraTensors<ConstTensorView>* lora = nullptr;
  LoraTensors<TensorView>* lora_gradient = nullptr;
  // A matrix [in, out], so that linear_backward_input() computes its product and linear() the gradient.
  bool transposed = false;
  double token_share = 1;  // of the tokens, those it multiplies: each expert takes some
  int64_t expert = -1;     // the one of its layer that it belongs to
};

}  // namespace tessera
