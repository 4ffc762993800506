// Which tensors a GGUF file has, and where in them the elements of a model's parameters are.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/gguf/gguf.h"
#include "formats/huggingface/model_config.h"
#include "model/parameters.h"

namespace tessera {

// What a parameter gives to one tensor: all of its elements, in their order, from `first_element` of the
// tensor on; or else (GPT-OSS) column `part`, `part` + num_parts, ... of each row. A transposed one is
// [in, out] and has its columns as rows of the tensor.
struct GgufPlace {
  size_t tensor = 0;  // of GgufPlan::tensors
  int64_t first_element = 0;
  bool transposed = false;
  int64_t part = 0;
  int64_t num_parts = 1;

  bool is_copy() const { return !transposed && num_parts == 1; }
};

struct GgufPlan {
  std::vector<GgufTensor> tensors;             // with names, shapes and types
  std::vector<std::vector<GgufPlace>> places;  // by parameter
  int64_t num_expert_parameters = 0;           // matrices of experts
};

// `type` is that of matrices: vectors, routers and biases are F32, as llama.cpp needs them, and so is what
// has no whole number of blocks in a row F16.
GgufPlan gguf_plan(const ModelConfig& config, const ParameterLayout& layout, GgmlType type);

// Elements of `values`, all of a parameter [rows, columns] (or vector), in the order of `place`.
std::vector<float> gguf_elements(const std::vector<float>& values, int64_t columns, const GgufPlace& place);

}  // namespace tessera
