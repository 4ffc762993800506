// Where a model's files have the values of a parameter, and reading them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weights/weight_names.h"

namespace tessera {

struct StoredParameter {
  const WeightEntry* tensor = nullptr;
  int64_t first_element = 0;
  // The tensor holds codes in MXFP4 of [N, K] for a parameter [K, N], and this their scales; null: values.
  const WeightEntry* scales = nullptr;

  bool is_mxfp4() const { return scales != nullptr; }
  // In the files.
  int64_t bytes_of(int64_t num_elements) const;
};

// nullopt = there is none. Otherwise shapes and types have been checked (Error(kBadData)).
std::optional<StoredParameter> find_parameter(const SafetensorsModel& model, const ModelConfig& config,
                                              const Parameter& parameter);

// Error(kBadData) unless the tensor has the shape and a type of the parameter.
void check_stored_tensor(const Parameter& parameter, const SafetensorsModel::Location& location);

// Reads values; keeps the codes of the last matrix in MXFP4. For one thread.
class ParameterReader {
 public:
  void read(const StoredParameter& stored, const Parameter& parameter, int64_t begin,
            std::span<float> values);

 private:
  const WeightEntry* tensor_ = nullptr;
  int64_t first_element_ = 0;
  std::vector<uint8_t> blocks_, scales_;
};

}  // namespace tessera
