// Training of a byte-level BPE with the pre-tokenizer of Llama 3. Sennrich et al., 2016.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "platform/thread_pool.h"

namespace tessera {

struct BpeTrainingOptions {
  std::vector<std::string> files;  // paths or globs
  int64_t vocab_size = 8192;       // special tokens included
  std::string bos_token = "<|begin_of_text|>";
  std::string eos_token = "<|end_of_text|>";
};

struct BpeTrainingResult {
  int64_t vocab_size;  // may be lower than asked when the text has no more pairs that occur twice
  int64_t num_merges;
  int64_t input_bytes;
};

// Writes tokenizer.json and tokenizer_config.json to `output`; the same input gives the same files.
// `progress` gets a fraction in [0, 1].
BpeTrainingResult train_bpe(const BpeTrainingOptions& options, const std::filesystem::path& output,
                            ThreadPool& pool, const std::function<void(double)>& progress = {});

}  // namespace tessera
