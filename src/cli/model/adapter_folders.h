// Folders with LoRA adapters among the flags of a command.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

// Declares --adapter, for one folder or several.
void declare_adapter_flag(FlagTable* table, std::string* target, std::string help);
void declare_adapter_flag(FlagTable* table, std::vector<std::string>* target, std::string help);
// The values of a flag for several; each may hold some, separated by commas.
std::vector<std::string> adapter_folders(const std::vector<std::string>& values);
// Whether the folder holds adapters and no model.
bool is_adapter_folder(const std::filesystem::path& folder);
// The model that an adapter was trained on. Error(kBadConfig) if its configuration names none that is a
// folder here.
std::string base_model_of(const std::filesystem::path& adapter);

}  // namespace tessera
