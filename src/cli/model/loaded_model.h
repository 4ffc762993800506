// A model folder in memory, ready for evaluation and generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/flags.h"
#include "comm/communicator.h"
#include "devices/make_ops.h"
#include "formats/safetensors/safetensors.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// What the weights of files are.
inline constexpr auto kFileDTypeWords = std::to_array<Word<DType>>({{"bfloat16", DType::kBF16},
                                                                    {"float16", DType::kF16},
                                                                    {"float32", DType::kF32},
                                                                    {"bf16", DType::kBF16},
                                                                    {"fp16", DType::kF16},
                                                                    {"fp32", DType::kF32}});

// What --device says.
OpsFactory ops_of_flag(DeviceKind device);

// eos_token_id of a folder's generation_config.json, one or several; empty without one.
std::vector<int64_t> generation_end_ids(const std::filesystem::path& folder);

class LoadedModel {
 public:
  // What will be allocated besides the weights; `purpose` is shown to the user.
  struct Use {
    int64_t bytes = 0;
    std::string purpose;
  };
  // Refuses a model whose weights, plus what `use` adds, do not fit in the memory of the operations' device,
  // then reads them as `dtype` (BF16 or F32). Errors are those of `make`, read_model_config,
  // SafetensorsModel::open and load_weights.
  //
  // Collective over `comm`, which must outlive this: each rank of a node reads a share of the files into
  // memory shared by the node. On a device with memory of its own there is one rank: otherwise
  // Error(kBadConfig).
  //
  // `adapter`: a folder with LoRA adapters for the model; "" = none. A folder that holds adapters alone is
  // one itself, for the model that it names.
  LoadedModel(const std::filesystem::path& folder, const std::filesystem::path& adapter, DType dtype,
              const OpsFactory& make, ThreadPool& pool,
              const std::function<Use(const TrainableModel&)>& use = {},
              Communicator& comm = single_process());

  TrainableModel& model() { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  // Where a text ends, as for Transformers: eos_token_id in config.json and in the generation_config.json of
  // the model and of the adapter.
  const std::unordered_set<int64_t>& end_ids() const { return end_ids_; }

 private:
  struct Weights {
    PageBuffer of_node;
    DeviceBuffer on_device;  // if the device has memory of its own
    TensorView view;         // of one of them
  };

  // Reads the parameters of `layout` to the device, or into memory shared by the node.
  Weights read(const SafetensorsModel& file, const ParameterLayout& layout, ThreadPool& pool,
               Communicator& comm) const;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TrainableModel> model_;
  std::unordered_set<int64_t> end_ids_;
  Weights weights_;
  Weights adapters_;
};

// Error(kBadConfig) naming the folder `model` if the tokenizer has tokens beyond the model's vocabulary.
void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config, const std::string& model);

// Bytes that are free for what `device` will hold, for this process.
int64_t free_bytes_of(const Device& device);

}  // namespace tessera
