#include "model/parameters.h"

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {

ParameterLayout::ParameterLayout(std::span<const ModelTensor> tensors, int64_t num_groups) {
  const auto begin_groups = [&](int64_t end) {
    while (std::ssize(groups_) < end) groups_.push_back({num_elements_, num_elements_});
  };
  for (const ModelTensor& tensor : tensors) {
    num_elements_ = round_up(num_elements_, kParameterAlignment);
    begin_groups(num_groups > 0 ? tensor.group + 1 : std::min(tensor.group, std::ssize(groups_)) + 1);
    TESSERA_CHECK(tensor.group + 1 == std::ssize(groups_), "{} in group {} after group {}",
                  tensor.parts.front().name, tensor.group, std::ssize(groups_) - 1);
    for (const ParameterPart& part : tensor.parts) append(tensor, part);
    // The end is aligned too, so that arrays stored back to back stay aligned.
    groups_.back().end = round_up(num_elements_, kParameterAlignment);
  }
  num_elements_ = round_up(num_elements_, kParameterAlignment);
  begin_groups(num_groups);
}

void ParameterLayout::append(const ModelTensor& tensor, const ParameterPart& part) {
  int64_t count = 1;
  for (const int64_t dim : part.shape) {
    TESSERA_CHECK(dim > 0, "{}: a dimension is {}", part.name, dim);
    count *= dim;
  }
  const bool weight_decay = !is_vector(tensor.kind);
  index_.emplace(part.name, parameters_.size());
  parameters_.push_back({part.name, part.shape, num_elements_, count, tensor.kind, weight_decay, tensor.group,
                         tensor.token_share, part.slice, tensor.expert});
  num_elements_ += count;
  num_parameters_ += count;
}

const Parameter* ParameterLayout::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

const Parameter& ParameterLayout::at(const std::string& name) const {
  const Parameter* parameter = find(name);
  TESSERA_CHECK(parameter != nullptr, "no parameter '{}' in this model", name);
  return *parameter;
}

}  // namespace tessera
