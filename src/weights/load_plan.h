// Where the parameters of a layout are in the files of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "weights/stored_parameter.h"

namespace tessera {

struct PlannedTensor {
  std::string name;
  SafetensorsModel::Location location;
  int64_t offset = 0;  // in the flat array
  int64_t num_elements = 0;
  const Parameter* parameter = nullptr;
  // Must hold the same values; this is not loaded itself.
  const WeightEntry* equal = nullptr;
  StoredParameter stored = {};
};

// Every tensor to read, in file order. Checks that the files have all tensors of the model in the shapes of
// its configuration, and no others: the errors of load_weights(). The arguments must outlive the result.
std::vector<PlannedTensor> plan_load(const SafetensorsModel& model, const ModelConfig& config,
                                     const ParameterLayout& layout);

}  // namespace tessera
