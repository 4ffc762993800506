// Names of models on the Hugging Face Hub where a folder is expected.
#pragma once

#include <filesystem>

namespace tessera {

// Error(kNoInput) when `path` does not exist and reads like such a name (org/name); says how to get the
// model.
void refuse_hub_name(const std::filesystem::path& path);

}  // namespace tessera
