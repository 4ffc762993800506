// Where a command writes a new model.
#pragma once

#include <filesystem>
#include <string>

#include "base/flags.h"

namespace tessera {

// Declares --output (also --output_dir) and --overwrite.
void declare_output_flags(FlagTable* table, std::string* output, bool* overwrite, std::string help);

// Error(kUsage) if `output` exists, unless it is an empty folder or `overwrite` is set, and always if it is
// `input`.
void check_output(const std::filesystem::path& output, bool overwrite, const std::filesystem::path& input);

}  // namespace tessera
