// Where a command writes a new model.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// Error(kUsage) if `output` exists, unless it is an empty folder or `overwrite` is set, and always if it is
// `input`.
void check_output(const std::filesystem::path& output, bool overwrite, const std::filesystem::path& input);

}  // namespace tessera
