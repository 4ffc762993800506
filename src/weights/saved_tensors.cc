#include "weights/saved_tensors.h"

#include <unordered_map>

#include "base/error.h"

namespace tessera {

std::vector<int64_t> saved_shape(const Parameter& parameter) {
  std::vector<int64_t> shape = parameter.shape;
  if (parameter.slice.count > 0) shape.insert(shape.begin(), parameter.slice.count);
  return shape;
}

std::vector<SavedTensor> saved_tensors(const ParameterLayout& layout) {
  std::vector<SavedTensor> tensors;
  std::unordered_map<std::string, size_t> index;
  for (const Parameter& parameter : layout.parameters()) {
    const auto [at, is_new] = index.try_emplace(saved_name(parameter), tensors.size());
    if (is_new) tensors.push_back({at->first, saved_shape(parameter), {}});
    SavedTensor& tensor = tensors[at->second];
    TESSERA_CHECK(parameter.slice.index == std::ssize(tensor.parts) && tensor.shape == saved_shape(parameter),
                  "{} after {} slices of {}", parameter.name, tensor.parts.size(), tensor.name);
    tensor.parts.push_back(&parameter);
  }
  return tensors;
}

}  // namespace tessera
