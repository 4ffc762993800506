// Writes a model folder as one GGUF file, for llama.cpp and the programs built on it.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "formats/gguf/gguf.h"
#include "formats/huggingface/model_config.h"
#include "platform/thread_pool.h"
#include "weights/model_folder.h"

namespace tessera {

struct GgufExportOptions {
  GgmlType type = GgmlType::kBF16;  // of matrices; norms and biases are F32, as llama.cpp needs them
  std::vector<std::filesystem::path> adapters = {};  // LoRA adapters that are added to the weights
  std::vector<GgufField> fields = {};                // metadata besides the model architecture's
  std::function<void(const LoadProgress&)> progress = {};
};

// Reads the weights in pieces of bounded size and writes each at its place; the file appears under its name
// once it is complete and on disk. Throws the errors of gguf_model_fields() and load_weights(); kIoError,
// before anything is written, if the disk has too little space; kNumerics for a value that is not finite in
// `type`. With Q8_0 a matrix whose rows are not multiples of 32 becomes F16, with a warning.
void export_gguf(const std::filesystem::path& model, const ModelConfig& config,
                 const GgufExportOptions& options, const std::filesystem::path& output, ThreadPool& pool);

}  // namespace tessera
