#include "weights/load_plan.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/model_families.h"
#include "weights/saved_tensors.h"

namespace tessera {
namespace {

std::string where(const SafetensorsModel& model) {
  const std::filesystem::path& first = model.files().front()->path();
  return model.files().size() == 1 ? first.native() : first.parent_path().native();
}

// The file that says which tensors there are.
const char* description(const ModelConfig& config) {
  return config.lora ? kAdapterConfigName : "config.json";
}

[[noreturn]] void fail_missing(const SafetensorsModel& model, const ModelConfig& config,
                               const Parameter& parameter) {
  const std::string& name = saved_name(parameter);
  if (name == kLmHeadName)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected since tie_word_embeddings is false in config.json, found none (set it to "
         "true if the model shares its embeddings)",
         where(model), name);
  fail(ExitCode::kBadData, "{}: tensor '{}': expected by {}, found none among its {}", where(model), name,
       description(config), count_of(std::ssize(model.tensors()), "tensor"));
}

// The part of the model that a tensor would belong to: a decoder layer, or a module.
std::string part_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t end = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : name.rfind('.');
  return name.substr(0, end == name.npos ? end : end + 1);
}

// Transformers ignores tensors that the model does not have; most families refuse them. One of a layer or
// module that it has means that config.json describes another model: the values would be wrong.
void check_others(const std::vector<const WeightEntry*>& others, const ModelConfig& config,
                  const ParameterLayout& layout) {
  for (const WeightEntry* other : others) {
    const std::string part = part_of(model_name_of(other->first));
    const auto is_part = [&](const Parameter& parameter) { return parameter.name.starts_with(part); };
    if (!config.lora && !family_info(config.family).refuses_unknown_fields &&
        std::ranges::none_of(layout.parameters(), is_part))
      continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': not part of the model that {} describes",
         other->second.file->path().native(), printable(other->first), description(config));
  }
  if (others.empty()) return;
  log_warning_once(fmt::format("{}: {} ('{}'{}) not part of the model that {} describes: ignored",
                               others.front()->second.file->path().native(),
                               count_of(std::ssize(others), "tensor"), printable(others.front()->first),
                               others.size() > 1 ? ", ..." : "", description(config)));
}

}  // namespace

std::vector<PlannedTensor> plan_load(const SafetensorsModel& model, const ModelConfig& config,
                                     const ParameterLayout& layout) {
  std::vector<PlannedTensor> tensors;
  std::set<const WeightEntry*> used;
  for (const Parameter& parameter : layout.parameters()) {
    const std::optional<StoredParameter> stored = find_parameter(model, config, parameter);
    if (!stored) fail_missing(model, config, parameter);
    tensors.push_back({parameter.name, stored->tensor->second, parameter.offset, parameter.num_elements,
                       &parameter, /*equal=*/nullptr, *stored});
    used.insert(stored->tensor);
    if (stored->is_mxfp4()) used.insert(stored->scales);
  }
  std::vector<const WeightEntry*> others;
  for (const WeightEntry& entry : model.tensors()) {
    if (used.contains(&entry) || is_left_over(entry.first, config)) continue;
    if (!repeats_embedding(entry.first, config)) {
      others.push_back(&entry);
      continue;
    }
    const Parameter& embedding = layout.parameters().front();
    Parameter copy = embedding;
    copy.name = entry.first;
    check_stored_tensor(copy, entry.second);
    tensors.push_back({entry.first,
                       entry.second,
                       embedding.offset,
                       embedding.num_elements,
                       &embedding,
                       find_weight(model, config, embedding.name),
                       {&entry}});
  }
  check_others(others, config, layout);
  // In file order, so that a disk is read sequentially.
  std::stable_sort(tensors.begin(), tensors.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
    const auto key = [](const PlannedTensor& tensor) {
      return std::tuple<const std::string&, int64_t, int64_t>(tensor.location.file->path().native(),
                                                              tensor.location.entry->offset_bytes,
                                                              tensor.stored.first_element);
    };
    return key(a) < key(b);
  });
  return tensors;
}

}  // namespace tessera
