#include "cli/model/model_command.h"

#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "cli/hub_names.h"
#include "cli/terminal/terminal.h"
#include "formats/file_kind.h"
#include "formats/huggingface/lora_config.h"
#include "model/families/families.h"
#include "settings/choices.h"
#include "settings/compat/compat_flags.h"
#include "weights/merged_adapters.h"

namespace tessera {

std::vector<std::string> adapter_folders(const std::vector<std::string>& values) {
  std::vector<std::string> folders;
  for (const std::string& value : values) {
    std::istringstream list(value);
    for (std::string folder; std::getline(list, folder, ',');) folders.push_back(folder);
  }
  return folders;
}

bool is_adapter_folder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / kAdapterConfigName, error) &&
         !std::filesystem::exists(folder / "config.json", error);
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

void ModelCommand::declare_model(FlagTable* table) {
  declare(table, "adapter", &adapter_);
  declare(table, "dtype", &dtype_, kTrainingDTypeWords);
  declare(table, "device", &device_);
  table->add_foreign_names(compat_hints("inference_hints"));
}

void ModelCommand::declare_sampling(FlagTable* table) {
  declare(table, "temperature", &sampling_.temperature);
  declare(table, "top_k", &sampling_.top_k);
  declare(table, "top_p", &sampling_.top_p);
}

SamplingOptions ModelCommand::sampling() const {
  if (!(sampling_.top_p > 0 && sampling_.top_p <= 1))
    fail(ExitCode::kUsage, "--top_p: expected above 0, at most 1, found {}", sampling_.top_p);
  if (!(sampling_.repetition_penalty > 0)) {
    fail(ExitCode::kUsage, "--repetition_penalty: expected above 0, found {}", sampling_.repetition_penalty);
  }
  SamplingOptions sampling = sampling_;
  sampling.seed = static_cast<uint64_t>(seed_);
  return sampling;
}

ModelFolders ModelCommand::folders() const {
  check_is_model_folder(model_);
  ModelFolders found = {model_, adapter_, model_};
  if (adapter_.empty() && is_adapter_folder(model_)) found = {base_model_of(model_), model_, ""};
  if (!found.adapter.empty()) found.tokenizer = tokenizer_source(found.model, {found.adapter});
  return found;
}

LoadedModel ModelCommand::load(const ModelFolders& folders, ThreadPool& pool, Communicator& comm,
                               const std::function<ModelUse(const TrainableModel&)>& use) const {
  StatusLine status;
  const auto show = [&](const std::filesystem::path& folder, const LoadProgress& now) {
    status.show("reading " + folder.native(), now.fraction(), now.bytes_per_second());
  };
  return {folders, dtype_, ops_factory(device_), pool, {use, show}, comm};
}

LoadedModel ModelCommand::load_for_texts(const ModelFolders& folders, const Tokenizer& tokenizer,
                                         ThreadPool& pool, Communicator& comm,
                                         const std::function<int64_t(const ModelConfig&)>& capacity_of,
                                         const char* flag) const {
  const auto use = [&](const TrainableModel& model) {
    const int64_t capacity = capacity_of(model.config());
    return ModelUse{
        generator_bytes(model, capacity),
        fmt::format("the key-value cache and buffers for {} (--{})", count_of(capacity, "token"), flag)};
  };
  LoadedModel loaded = load(folders, pool, comm, use);
  check_vocabulary(tokenizer, loaded.config(), model_);
  return loaded;
}

std::map<std::string, std::string> ModelCommand::settings_of_the_job(
    std::map<std::string, std::string> of_command) const {
  of_command.merge(
      std::map<std::string, std::string>{{"version of tessera", TESSERA_VERSION},
                                         {"dtype", std::string(word_of(kTrainingDTypeWords, dtype_))},
                                         {"device", std::string(word_of(device_))}});
  return of_command;
}

}  // namespace tessera
