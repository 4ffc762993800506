// The tensors of a model's files: its parameters, or what several of them are slices of (FileSlice).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors/safetensors_layout.h"
#include "model/parameters.h"

namespace tessera {

struct SavedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<const Parameter*> parts;  // back to back
};

// In the order of their first parameters.
std::vector<SavedTensor> saved_tensors(const ParameterLayout& layout);

// The tensor that a parameter is or is part of, and where it begins in there.
inline const std::string& saved_name(const Parameter& parameter) {
  return parameter.slice.count > 0 ? parameter.slice.tensor : parameter.name;
}
inline int64_t saved_begin(const Parameter& parameter) {
  return parameter.slice.index * parameter.num_elements;
}
std::vector<int64_t> saved_shape(const Parameter& parameter);

// Calls body(parameter, begin, count) for the parts of elements [begin, begin + count) of a SavedTensor.
template <typename Body>
void for_each_part(const std::vector<const Parameter*>& parts, int64_t begin, int64_t count,
                   const Body& body) {
  const int64_t part_elements = parts.front()->num_elements, end = begin + count;
  for (int64_t at = begin; at < end;) {
    const int64_t part = at / part_elements, part_end = std::min(end, (part + 1) * part_elements);
    body(*parts[static_cast<size_t>(part)], at - part * part_elements, part_end - at);
    at = part_end;
  }
}

}  // namespace tessera
