// Trains a byte-level BPE (Sennrich et al., 2016) with Llama 3's pre-tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "platform/thread_pool.h"

namespace tessera {

struct BpeTrainingOptions {
  std::vector<std::string> files;  // as in find_input_files (formats/input_files.h), plain text
  int64_t vocab_size = 8192;       // special tokens included, at least 256 + these
  std::string bos_token = "<|begin_of_text|>";
  std::string eos_token = "<|end_of_text|>";
  std::string pad_token = "";  // none
  // Skip and count files that are not UTF-8; otherwise such a file is an Error(kBadData) naming it and the
  // offset.
  bool skip_invalid_utf8 = false;
};

struct BpeTrainingResult {
  int64_t vocab_size;  // lower than requested if no pair occurs twice
  int64_t num_merges;
  int64_t input_bytes;
  int64_t num_files;                  // used
  int64_t num_files_skipped;          // not UTF-8
  std::vector<std::string> left_out;  // skipped files, one line for the user per folder
};

// Writes tokenizer.json and tokenizer_config.json to `output`; the same input gives the same files for any
// number of threads. Ids: the 256 bytes, the merged tokens in merge order, the special tokens. Among pairs
// with equal counts the one with the smaller ids is merged first, as in Hugging Face. Memory does not grow
// with the size of the files: rare words are dropped once there are more than kMaxTrainingWords distinct
// ones. `progress` gets a fraction in [0, 1].
BpeTrainingResult train_bpe(const BpeTrainingOptions& options, const std::filesystem::path& output,
                            ThreadPool& pool, const std::function<void(double)>& progress = {});

inline constexpr int64_t kMaxTrainingWords = 4'000'000;

}  // namespace tessera
