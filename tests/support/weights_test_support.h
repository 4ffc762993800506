// For tests of the files with weights: weights that every type of file holds, and a folder with them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "weights/model_folder.h"

namespace tessera {

// Normally distributed weights that BF16 holds exactly; gaps between the parameters are zero.
std::vector<float> bf16_weights(const ParameterLayout& layout, uint64_t seed);

// export_model_folder() of the elements of `flat`.
void export_flat(const std::filesystem::path& folder, const ModelConfig& config,
                 const std::vector<float>& flat, const ExportOptions& options = {});

}  // namespace tessera
