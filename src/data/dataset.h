// Token rows of a dataset: text, JSONL or pre-tokenized safetensors, tokenized once into a cache file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

enum class Packing {
  kNone,      // one row per document, cut to max_length; no padding exists
  kIsolated,  // documents joined by EOS and cut to max_length; attention and targets stay inside a document
  kJoined,    // the same rows, but a row is one sequence: attention and targets cross documents
};

struct DatasetOptions {
  std::vector<std::string>
      files;  // paths or globs; .jsonl/.json = JSONL, .safetensors = pre-tokenized, else text
  std::string text_column = "text";
  bool text_per_line = false;  // text files: a document is a line instead of the file
  int64_t max_length = 1024;   // tokens per row
  Packing packing = Packing::kNone;
  bool add_special_tokens = true;
  std::filesystem::path cache_folder;  // empty = $XDG_CACHE_HOME/tessera or ~/.cache/tessera
};

// Rows are numbered in the order of the files as given (globs sorted) and the documents in them. Read in
// place from the cache file by explicit reads: memory stays bounded whatever the size. Safe from several
// threads.
class Dataset {
 public:
  // Errors name file, line and column: kNoInput, kBadData (not UTF-8, not JSON, no such column, empty, id out
  // of the vocabulary, rows without any target at all). `tokenizer` may be null for pre-tokenized files only.
  // Ids and labels are checked against vocab_size.
  static Dataset open(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
                      ThreadPool& pool, const std::function<void(double fraction)>& progress = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  int64_t num_rows() const;
  int64_t num_tokens() const;  // of all rows
  int64_t max_row_length() const;
  int64_t row_length(int64_t row) const;
  int64_t row_num_targets(
      int64_t row) const;  // labels that count, shift and sequence ends taken into account

  struct Row {
    std::vector<int32_t> input_ids;
    std::vector<int32_t> labels;            // same length; empty = the input_ids themselves
    std::vector<int32_t> sequence_lengths;  // documents in the row (kIsolated), else one entry
  };
  void read_row(int64_t row, Row* out) const;

 private:
  struct Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
