// Every parameter of a model, with its Hugging Face name, its shape and its place in one flat array. Weights,
// gradients and optimizer state use the same offsets, so that a shard of the model is a range of elements.
//
// The order is that of the model's list of tensors. The parts of a tensor are adjacent without gaps, so that
// a fused matrix is a view; every tensor begins at a multiple of kParameterAlignment elements.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/model_tensor.h"

namespace tessera {

// One cache line of BF16, two of F32.
inline constexpr int64_t kParameterAlignment = 32;

struct Parameter {
  std::string name;            // "model.layers.0.mlp.gate_proj.weight"
  std::vector<int64_t> shape;  // [out, in] for linear layers
  int64_t offset;              // first element in the flat array
  int64_t num_elements;
  ParameterKind kind;
  bool weight_decay;       // false for norms and biases, which Hugging Face's Trainer exempts, and sinks
  int64_t group;           // 0 embedding, 1 + i layer i, number of layers + 1 final norm and LM head
  double token_share = 1;  // ModelTensor::token_share
  FileSlice slice = {};
  int64_t expert = -1;  // ModelTensor::expert
};

class ParameterLayout {
 public:
  ParameterLayout() = default;
  // Groups must ascend from 0, without gaps unless `num_groups` is given: then there are that many, and some
  // may be empty.
  explicit ParameterLayout(std::span<const ModelTensor> tensors, int64_t num_groups = 0);

  const std::vector<Parameter>& parameters() const { return parameters_; }  // by offset
  const Parameter& at(const std::string& name) const;                       // unknown name = bug
  const Parameter* find(const std::string& name) const;                     // nullptr if unknown
  int64_t num_elements() const { return num_elements_; }      // in the flat array, including alignment gaps
  int64_t num_parameters() const { return num_parameters_; }  // without gaps; tied embeddings count once
  // These are adapters, not the weights of a model.
  bool is_adapter() const {
    return !parameters_.empty() && parameters_.front().kind == ParameterKind::kLoraA;
  }

  // Elements [begin, end) of a parameter group, including gaps between its tensors. Groups are contiguous.
  struct Group {
    int64_t begin;
    int64_t end;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  void append(const ModelTensor& tensor, const ParameterPart& part);

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<Group> groups_;
  int64_t num_elements_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace tessera
