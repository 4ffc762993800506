// LoRA adapters that are added to the weights of a model while these are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "formats/safetensors/safetensors.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"

namespace tessera {

class MergedAdapters {
 public:
  // Opens adapter folders. Errors of read_lora_config(), SafetensorsModel::open() and load_weights(), also
  // for adapters that do not fit the model.
  MergedAdapters(const std::vector<std::filesystem::path>& folders, ModelConfig model, ThreadPool& pool);

  bool empty() const { return adapters_.empty(); }

  // values, in float32, are the elements of `parameter` from `begin` on: w += scale * B A for each adapter of
  // its module. May be called by several threads.
  void add(const Parameter& parameter, int64_t begin, std::span<float> values) const;

 private:
  struct Adapter {
    LoraConfig config;
    SafetensorsModel weights;
  };
  std::vector<Adapter> adapters_;
};

// The folder whose tokenizer belongs to the result: that of the first adapter that has one, because training
// may have changed the chat template; otherwise the model's.
std::filesystem::path tokenizer_source(const std::filesystem::path& model,
                                       const std::vector<std::filesystem::path>& adapters);
// Its generation_config.json: that of the first adapter that has one, with the end of the answers that it was
// trained on; otherwise the model's, which need not exist.
std::filesystem::path generation_config_source(const std::filesystem::path& model,
                                               const std::vector<std::filesystem::path>& adapters);

}  // namespace tessera
