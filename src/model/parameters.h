// Every parameter of a model, with its Hugging Face name, its shape and its place in one flat array. Weights,
// gradients and optimizer state use the same offsets, so that a shard of the model is a range of elements.
//
// Order: embedding, layers, final norm, LM head (absent if tied). Tensors used together by one matrix product
// are adjacent without gaps and form one block, so that a fused matrix is a view:
//   q_proj, k_proj, v_proj weights [(H + 2G) E, D] and biases [(H + 2G) E]; gate_proj, up_proj weights [2F,
//   D] and biases [2F].
// Every block, and every tensor outside a block, begins at a multiple of kParameterAlignment elements.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/huggingface/model_config.h"

namespace tessera {

// One cache line of BF16, two of F32.
inline constexpr int64_t kParameterAlignment = 32;

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
  const Parameter& at(const std::string& name) const;                       // unknown name = bug
  const Parameter* find(const std::string& name) const;                     // nullptr if unknown
  int64_t num_elements() const { return num_elements_; }      // in the flat array, including alignment gaps
  int64_t num_parameters() const { return num_parameters_; }  // without gaps; tied embeddings count once

  // Elements [begin, end) of a parameter group, including gaps between its blocks. Groups are contiguous.
  struct Group {
    int64_t begin;
    int64_t end;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  void begin_block();
  void append(std::string name, std::vector<int64_t> shape, int64_t group);
  void append_layer(const ModelConfig& config, int64_t layer);

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<Group> groups_;
  int64_t num_elements_ = 0;
  int64_t num_parameters_ = 0;
};

// "model.layers.3." + suffix.
std::string layer_parameter_name(int64_t layer, const std::string& suffix);

}  // namespace tessera
