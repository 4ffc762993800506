#include "weights/gguf_plan.h"

#include <charconv>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "formats/gguf/gguf_model.h"
#include "formats/gguf/q8_0.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

// The index in "model.layers.3.mlp.experts.7.up_proj.weight"; -1 if it is not of one expert.
int64_t expert_index(const ModelConfig& config, std::string_view name) {
  if (!config.experts) return -1;
  const std::string experts = "." + family_info(config.family).names.experts + ".";
  const size_t at = name.find(experts);
  if (at == name.npos) return -1;
  name.remove_prefix(at + experts.size());
  int64_t index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  return error == std::errc() && end != name.data() + name.size() ? index : -1;
}

GgmlType stored_type(const Parameter& parameter, const GgufTensor& tensor, GgmlType wanted) {
  if (tensor.shape.size() == 1 || parameter.kind == ParameterKind::kRouter || is_vector(parameter.kind))
    return GgmlType::kF32;
  if (wanted != GgmlType::kQ8_0 || tensor.shape[0] % kQ8BlockElements == 0) return wanted;
  log_warning("tensor '{}': rows of {} elements are no multiple of {}, as Q8_0 needs them: written as F16",
              tensor.name, tensor.shape[0], kQ8BlockElements);
  return GgmlType::kF16;
}

class Planner {
 public:
  Planner(const ModelConfig& config, GgmlType type) : config_(config), type_(type) {}

  void add(const Parameter& parameter) {
    plan_.places.emplace_back();
    // Hugging Face's shape of the tensor.
    std::vector<int64_t> shape = parameter.shape;
    GgufPlace place;
    const bool is_slice = parameter.slice.count > 0;
    const int64_t expert = is_slice ? parameter.slice.index : expert_index(config_, parameter.name);
    if (is_slice) {
      std::swap(shape[0], shape[1]);
      place.transposed = true;
    }
    std::string name = gguf_tensor_name(config_, is_slice ? parameter.slice.tensor : parameter.name);
    // GPT-OSS has gate and up in one tensor; their columns alternate.
    constexpr std::string_view kGateUp = "gate_up";
    const size_t both = name.find(kGateUp);
    place.num_parts = both == name.npos ? 1 : 2;
    shape[is_slice ? 0 : shape.size() - 1] /= place.num_parts;
    if (expert >= 0) {
      place.first_element = expert * shape[0] * shape[1];
      shape.insert(shape.begin(), config_.experts->num_experts);
      plan_.num_expert_parameters += parameter.num_elements;
    }
    if (place.num_parts == 1) return add_place(parameter, name, shape, place);
    name.replace(both, kGateUp.size(), "gate");
    add_place(parameter, name, shape, place);
    place.part = 1;
    name.replace(both, std::string_view("gate").size(), "up");
    add_place(parameter, name, shape, place);
  }

  GgufPlan take() { return std::move(plan_); }

 private:
  void add_place(const Parameter& parameter, const std::string& name, const std::vector<int64_t>& shape,
                 GgufPlace place) {
    const auto [at, is_new] = index_.emplace(name, plan_.tensors.size());
    place.tensor = at->second;
    plan_.places.back().push_back(place);
    if (!is_new) return;
    GgufTensor tensor = {.name = name, .shape = {shape.rbegin(), shape.rend()}, .type = nullptr};
    tensor.type = &ggml_type(stored_type(parameter, tensor, type_));
    plan_.tensors.push_back(std::move(tensor));
  }

  const ModelConfig& config_;
  GgmlType type_;
  GgufPlan plan_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace

GgufPlan gguf_plan(const ModelConfig& config, const ParameterLayout& layout, GgmlType type) {
  Planner planner(config, type);
  for (const Parameter& parameter : layout.parameters()) planner.add(parameter);
  return planner.take();
}

std::vector<float> gguf_elements(const std::vector<float>& values, int64_t columns, const GgufPlace& place) {
  const int64_t rows = std::ssize(values) / columns, kept = columns / place.num_parts;
  TESSERA_CHECK(rows * columns == std::ssize(values) && kept * place.num_parts == columns,
                "{} values, {} columns, {} parts", values.size(), columns, place.num_parts);
  std::vector<float> elements(static_cast<size_t>(rows * kept));
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = values.data() + row * columns + place.part;
    for (int64_t column = 0; column < kept; ++column) {
      const int64_t to = place.transposed ? column * rows + row : row * kept + column;
      elements[static_cast<size_t>(to)] = from[column * place.num_parts];
    }
  }
  return elements;
}

}  // namespace tessera
