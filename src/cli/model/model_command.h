// The commands that run a model share this: where the model is, what device it runs on, how it samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"
#include "inference/loaded_model.h"
#include "model/sampling.h"

namespace tessera {

// The values of a flag for several adapters; each may hold some, separated by commas.
std::vector<std::string> adapter_folders(const std::vector<std::string>& values);
// Whether the folder holds adapters and no model.
bool is_adapter_folder(const std::filesystem::path& folder);
// The folder of the model that an adapter was trained on, downloaded if that is a name on the Hub. Errors of
// resolve_model(); kBadConfig if the adapter's configuration names neither.
std::string base_model_of(const std::filesystem::path& adapter);

class ModelCommand : public Command {
 protected:
  // --adapter, --dtype and --device. --model comes first in help.
  void declare_model(FlagTable* table);
  void declare_sampling(FlagTable* table);
  // Returns the sampling options from the flags. Error(kUsage) if they make no sense.
  SamplingOptions sampling() const;

  // A folder of adapters alone is one for the model that it names. The tokenizer is the adapter's if it has
  // one, as in a merged model, else the model's.
  ModelFolders folders() const;
  // Collective over `comm`.
  LoadedModel load(const ModelFolders& folders, ThreadPool& pool, Communicator& comm,
                   const std::function<ModelUse(const TrainableModel&)>& use = {}) const;
  // Leaves memory for a TextGenerator of `capacity_of` tokens, which `flag` limits.
  LoadedModel load_for_texts(const ModelFolders& folders, const Tokenizer& tokenizer, ThreadPool& pool,
                             Communicator& comm,
                             const std::function<int64_t(const ModelConfig&)>& capacity_of,
                             const char* flag) const;
  // Settings that all ranks must have alike.
  std::map<std::string, std::string> settings_of_the_job(std::map<std::string, std::string> of_command) const;

  std::string model_;
  std::string adapter_;
  SamplingOptions sampling_;  // without the seed
  int64_t seed_ = 42;
  DType dtype_ = DType::kBF16;
  DeviceKind device_ = DeviceKind::kCpu;
};

}  // namespace tessera
