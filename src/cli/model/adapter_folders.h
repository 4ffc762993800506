// Folders with LoRA adapters among the flags of a command.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// The values of a flag for several; each may hold some, separated by commas.
std::vector<std::string> adapter_folders(const std::vector<std::string>& values);
// Whether the folder holds adapters and no model.
bool is_adapter_folder(const std::filesystem::path& folder);
// The folder of the model that an adapter was trained on, downloaded if that is a name on the Hub. Errors of
// resolve_model(); kBadConfig if the adapter's configuration names neither.
std::string base_model_of(const std::filesystem::path& adapter);
// The folder with the tokenizer and the chat template for a model (or a folder of adapters alone) and an
// adapter, "" = none: the adapter's if it has a tokenizer, as in a merged model, else the model's.
std::string tokenizer_folder_of(const std::string& model, const std::string& adapter);

}  // namespace tessera
