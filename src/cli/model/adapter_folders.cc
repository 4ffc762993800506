#include "cli/model/adapter_folders.h"

#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/hub_names.h"
#include "formats/huggingface/lora_config.h"
#include "weights/merged_adapters.h"

namespace tessera {
bool is_adapter_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / kAdapterConfigName, error) &&
         !std::filesystem::exists(folder / "config.json", error);
}

std::vector<std::string> adapter_folders(const std::vector<std::string>& values) {
  std::vector<std::string> folders;
  for (const std::string& value : values) {
    std::istringstream list(value);
    for (std::string folder; std::getline(list, folder, ',');) folders.push_back(folder);
  }
  return folders;
}

std::string base_model_of(const std::filesystem::path& adapter) {
  const std::string base = read_lora_config(adapter).base_model_name_or_path;
  const std::string folder = base.empty() ? base : local_model(base, ModelFiles::kAll);
  std::error_code error;
  if (folder.empty() || !std::filesystem::is_directory(folder, error)) {
    fail(ExitCode::kBadConfig,
         "{}: field 'base_model_name_or_path': expected a folder or a name on the Hub, found '{}': name the "
         "model as --model and this folder as --adapter",
         (adapter / kAdapterConfigName).native(), printable(base));
  }
  return folder;
}

std::string tokenizer_folder_of(const std::string& model, const std::string& adapter) {
  if (!adapter.empty()) return tokenizer_source(model, {adapter}).string();
  std::error_code error;
  const bool has_own = std::filesystem::exists(std::filesystem::path(model) / "tokenizer.json", error);
  return !has_own && is_adapter_folder(model) ? base_model_of(model) : model;
}

}  // namespace tessera
