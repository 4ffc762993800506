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
  std::vector<std::string> files;  // as in find_input_files (formats/input_files.h), plain text
  int64_t vocab_size = 8192;       // special tokens included, at least 256 + these
  std::string bos_token = "<|begin_of_text|>";
  std::string eos_token = "<|end_of_text|>";
  // Leave out files that are not UTF-8 and count them; otherwise such a file is an Error(kBadData) that names
  // it and the offset.
  bool skip_invalid_utf8 = false;
};

struct BpeTrainingResult {
  int64_t vocab_size;  // may be lower than asked when the text has no more pairs that occur twice
  int64_t num_merges;
  int64_t input_bytes;
  int64_t num_files;                  // used
  int64_t num_files_skipped;          // not UTF-8
  std::vector<std::string> left_out;  // files of folders, a line for the user for each folder
};

// Writes tokenizer.json and tokenizer_config.json to `output`; the same input gives the same files, whatever
// the number of threads. Ids: the 256 bytes, the merged tokens in the order of their merges, the special
// tokens. Of pairs with equal counts the one with the smaller ids is merged first, as in Hugging Face.
// Memory does not grow with the size of the files: rare words are dropped when more than kMaxTrainingWords
// different ones have come together. `progress` gets a fraction in [0, 1].
BpeTrainingResult train_bpe(const BpeTrainingOptions& options, const std::filesystem::path& output,
                            ThreadPool& pool, const std::function<void(double)>& progress = {});

inline constexpr int64_t kMaxTrainingWords = 4'000'000;

}  // namespace tessera
