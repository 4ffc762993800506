// Detects Hugging Face Hub model names given where a folder is expected.
#pragma once

#include <filesystem>

namespace tessera {

// Error(kNoInput) if `path` does not exist and looks like such a name (org/name); says how to get the model.
void refuse_hub_name(const std::filesystem::path& path);

}  // namespace tessera
