// Every parameter of a model, its Hugging Face name, its shape and its place in one flat array. Weights,
// gradients and optimizer state use the same offsets, so that a shard of the model is a range of elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/model_config.h"

namespace tessera {

struct Parameter {
  std::string name;            // "model.layers.0.mlp.gate_proj.weight"
  std::vector<int64_t> shape;  // [out, in] for linear layers
  int64_t offset;              // first element in the flat array
  int64_t num_elements;
  bool weight_decay;  // false for norms and biases
  int64_t group;      // 0 embedding, 1 + i layer i, num_hidden_layers + 1 final norm and LM head
};

class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<Parameter>& parameters() const { return parameters_; }  // by offset
  const Parameter& at(const std::string& name) const;                       // unknown = bug
  int64_t num_elements() const { return num_elements_; }      // of the flat array, alignment gaps included
  int64_t num_parameters() const { return num_parameters_; }  // without gaps; tied embeddings count once

 private:
  std::vector<Parameter> parameters_;
  int64_t num_elements_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace tessera
