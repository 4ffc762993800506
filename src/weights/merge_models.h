// Combines the weights of models of the same shape into a new model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

enum class MergeMethod {
  kLinear,  // sum over models of weight * w, weights divided by their sum
  // For two models a and b, each tensor as one vector with the angle theta between them (Shoemake, 1985; as
  // in mergekit): (sin((1 - t) theta) a + sin(t theta) b) / sin(theta). Where they are nearly parallel,
  // |cos(theta)| > 0.9995, it is (1 - t) a + t b.
  kSlerp,
};

struct MergeOptions {
  MergeMethod method = MergeMethod::kLinear;
  std::vector<double> weights = {};  // kLinear: one per model, with a positive sum
  double t = 0.5;                    // kSlerp
  // Folders with LoRA adapters, all of which are added to the result: w += scale * B A.
  std::vector<std::filesystem::path> adapters = {};
  DType save_dtype = DType::kBF16;  // BF16, F16 or F32
  int64_t max_shard_bytes = 5'000'000'000;
  std::function<void(double fraction)> progress = {};
};

// Reads model folders or checkpoints and writes a Hugging Face folder: the weights, computed in float32
// and rounded once, to nearest, ties to even; configuration, generation settings and tokenizer of the
// first model. Memory does not grow with the models. A single model with the method kLinear is copied,
// except files that do not belong to a model folder. With adapters the tokenizer and the generation
// settings come from the first one that has any. Error(kBadConfig) naming the field in which
// configurations differ; the errors of load_weights() for tensors that the configuration does not
// describe; kIoError, before anything is written, if the disk has too little space; kNumerics for a result
// that is not finite in save_dtype.
void merge_models(const std::vector<std::filesystem::path>& models, const MergeOptions& options,
                  const std::filesystem::path& output, ThreadPool& pool);

// The type of most weights of a model folder, if it can be saved as that; otherwise F32.
DType weights_dtype(const std::filesystem::path& model);

}  // namespace tessera
