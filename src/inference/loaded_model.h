// A model folder in memory, ready for evaluation and generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/communicator.h"
#include "devices/make_ops.h"
#include "formats/safetensors/safetensors.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"
#include "weights/model_folder.h"

namespace tessera {

// Where the parts of a model are.
struct ModelFolders {
  std::filesystem::path model;      // the weights
  std::filesystem::path adapter;    // LoRA adapters for them; "" = none
  std::filesystem::path tokenizer;  // and the chat template
};

// eos_token_id of a folder's generation_config.json, one or several; empty without one.
std::vector<int64_t> generation_end_ids(const std::filesystem::path& folder);

// Memory that will be allocated besides the weights; `purpose` is shown to the user.
struct ModelUse {
  int64_t bytes = 0;
  std::string purpose;
};
struct LoadedModelOptions {
  std::function<ModelUse(const TrainableModel&)> use = {};
  // Told how far reading the files of a folder is, on rank 0.
  std::function<void(const std::filesystem::path& folder, const LoadProgress&)> progress = {};
};

class LoadedModel {
 public:
  // Refuses a model whose weights, plus what `use` adds, do not fit in the memory of the operations' device,
  // then reads them as `dtype` (BF16 or F32). Errors are those of `make`, read_model_config,
  // SafetensorsModel::open and load_weights.
  //
  // Collective over `comm`, which must outlive this: each rank of a node reads a share of the files into
  // memory shared by the node. On a device with memory of its own there is one rank: otherwise
  // Error(kBadConfig).
  LoadedModel(const ModelFolders& folders, DType dtype, const OpsFactory& make, ThreadPool& pool,
              const LoadedModelOptions& options = {}, Communicator& comm = single_process());

  TrainableModel& model() { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  // Where a text ends, as for Transformers: eos_token_id in config.json and in the generation_config.json of
  // the model and of the adapter.
  const std::unordered_set<int64_t>& end_ids() const { return end_ids_; }

  // Collective over the ranks of a node: reserves memory for activations, and for packed weights if there is
  // room. Error(kBadConfig) if there is too little.
  void reserve_for_evaluation(ActivationLimits limits, Communicator& comm);

 private:
  struct Weights {
    PageBuffer of_node;
    DeviceBuffer on_device;  // if the device has memory of its own
    TensorView view;         // of one of them
  };

  // Reads the parameters of `layout` to the device, or into memory shared by the node.
  Weights read(const std::filesystem::path& folder, const SafetensorsModel& file,
               const ParameterLayout& layout, ThreadPool& pool, const LoadedModelOptions& options,
               Communicator& comm) const;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TrainableModel> model_;
  std::unordered_set<int64_t> end_ids_;
  Weights weights_;
  Weights adapters_;
};

// Error(kBadConfig) naming the folder `model` if the tokenizer has tokens beyond the model's vocabulary.
void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config, const std::string& model);

}  // namespace tessera
