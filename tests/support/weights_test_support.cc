#include "support/weights_test_support.h"

#include <algorithm>

#include "base/rng.h"
#include "model/families/families.h"

namespace tessera {

std::vector<float> bf16_weights(const ParameterLayout& layout, uint64_t seed) {
  std::vector<float> flat(static_cast<size_t>(layout.num_elements()));
  for (const Parameter& parameter : layout.parameters()) {
    const CounterRng rng(seed, hash_name(parameter.name));
    for (int64_t i = 0; i < parameter.num_elements; ++i)
      flat[static_cast<size_t>(parameter.offset + i)] =
          to_float(to_bf16(rng.normal(static_cast<uint64_t>(i))));
  }
  return flat;
}

void export_flat(const std::filesystem::path& folder, const ModelConfig& config,
                 const std::vector<float>& flat, const ExportOptions& options) {
  const auto source = [&](int64_t begin, std::span<float> values) {
    std::copy_n(flat.begin() + begin, values.size(), values.begin());
  };
  export_model_folder(folder, config, parameter_layout(config), source, options);
}

}  // namespace tessera
