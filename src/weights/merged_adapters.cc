#include "weights/merged_adapters.h"

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>

#include "base/divide_up.h"
#include "model/families/families.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<float> read_elements(const SafetensorsModel& weights, const std::string& name, int64_t begin,
                                 int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const SafetensorsModel::Location& at = weights.tensors().at(name);
  at.file->read(*at.entry, begin, TensorView(values.data(), DType::kF32, Shape({count})));
  return values;
}

std::optional<fs::path> first_with(const char* file, const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (fs::exists(folder / file, error)) return folder;
  }
  return std::nullopt;
}

}  // namespace

MergedAdapters::MergedAdapters(const std::vector<fs::path>& folders, ModelConfig model, ThreadPool& pool) {
  for (const fs::path& folder : folders) {
    adapters_.push_back({read_lora_config(folder), SafetensorsModel::open(folder / kAdapterFileName)});
    model.lora = adapters_.back().config;
    load_weights(adapters_.back().weights, model, parameter_layout(model), {}, pool,
                 {.ranges = std::span<const ElementRange>()});
  }
}

void MergedAdapters::add(const Parameter& parameter, int64_t begin, std::span<float> values) const {
  if (parameter.shape.size() != 2 || values.empty()) return;
  const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
  const int64_t K = parameter.shape[1], end = begin + std::ssize(values);
  const int64_t first_row = begin / K, num_rows = divide_up(end, K) - first_row;
  std::vector<float> row;
  for (const Adapter& adapter : adapters_) {
    const std::optional<LoraModule> lora = adapter.config.adapter_of(module);
    if (!lora) continue;
    const int64_t rank = lora->rank;
    const auto scale = static_cast<float>(lora->scale);
    const std::vector<float> a = read_elements(adapter.weights, lora_a_name(module), 0, rank * K);
    const std::vector<float> b =
        read_elements(adapter.weights, lora_b_name(module), first_row * rank, num_rows * rank);
    for (int64_t at = begin; at < end;) {
      const int64_t first = at % K, count = std::min(K - first, end - at);
      row.assign(static_cast<size_t>(count), 0.0f);
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = b[static_cast<size_t>((at / K - first_row) * rank + k)];
        const float* from = a.data() + k * K + first;
        for (size_t i = 0; i < row.size(); ++i) row[i] += factor * from[i];
      }
      float* to = values.data() + (at - begin);
      for (size_t i = 0; i < row.size(); ++i) to[i] += scale * row[i];
      at += count;
    }
  }
}

fs::path tokenizer_source(const fs::path& model, const std::vector<fs::path>& adapters) {
  return first_with("tokenizer.json", adapters).value_or(model);
}

fs::path generation_config_source(const fs::path& model, const std::vector<fs::path>& adapters) {
  return first_with(kGenerationConfigName, adapters).value_or(model) / kGenerationConfigName;
}

}  // namespace tessera
