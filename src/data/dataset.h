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
  // Paths, folders or globs, in this order, as accepted by find_input_files (formats/input_files.h). By
  // extension: .jsonl, .ndjson and .json are JSON (an object per line, or an array of objects), .safetensors
  // is pre-tokenized, anything else is text. Pre-tokenized files cannot be mixed with the others.
  std::vector<std::string> files;
  std::string text_column = "text";
  bool text_per_line = false;  // text files: every line is a document instead of the file
  int64_t max_length = 1024;   // tokens per row, at least 2
  // Packing appends EOS to every document (unless its last token is EOS already); nothing else does.
  // Pre-tokenized rows are never packed.
  Packing packing = Packing::kNone;
  // Cut rows to max_length even if that drops more than a tenth of all tokens.
  bool allow_truncation = false;
  bool add_special_tokens = true;      // the tokenizer's post-processor (bos, ...), for every document
  bool skip_invalid_utf8 = false;      // skip and count documents that are not UTF-8 instead of failing
  std::filesystem::path cache_folder;  // empty = $XDG_CACHE_HOME/tessera or ~/.cache/tessera
};

// What was found in a dataset; the same whether its rows were built now or came from the cache.
struct DatasetReport {
  int64_t num_files = 0;
  int64_t num_documents = 0;          // that became rows; for pre-tokenized files: rows
  int64_t num_empty_documents = 0;    // without any text or token: dropped
  int64_t num_invalid_documents = 0;  // not UTF-8: dropped (skip_invalid_utf8)
  int64_t num_cut_documents = 0;      // longer than max_length: cut (never with packing)
  int64_t num_cut_tokens = 0;         // tokens dropped by cutting
  bool cache_hit = false;
  std::filesystem::path cache_file;
  // One line each, for the user: files skipped in folders, documents dropped or cut, a damaged cache that was
  // rebuilt.
  std::vector<std::string> warnings;
};

// Rows are numbered in the order of the files and of the documents in them. A document is a text file, a line
// of one, or a JSON object; its text is used verbatim, except that a byte order mark at the start of the file
// is dropped, and so are line ends (LF, CRLF) if documents are lines. Empty documents are dropped.
//
// A pre-tokenized file has a tensor input_ids of any integer type, whose last axis is the row and whose other
// axes are taken in order, and may have labels of the same shape (an id, or -100 for no target) and an
// attention_mask of ones; its rows are cut to max_length.
//
// Rows are read on demand from the cache file with explicit reads, so memory stays bounded for any size (16
// bytes per row; a few times the longest document while tokenizing). The cache file's name is a hash of the
// files' contents, the settings and the tokenizer. Several runs may share a cache folder; if several
// processes need the same file at once, one builds it while the others wait (meanwhile `progress` is called
// with 0 and may throw).
class Dataset {
 public:
  // Errors name file, line and column: kNoInput (no such file), kBadData (not UTF-8, not JSON, no such
  // column, not text, unsupported format, empty, id outside the vocabulary, no target in any row), kBadConfig
  // (settings, more than a tenth of the tokens cut), kIoError (cache folder). `tokenizer` may be null only
  // for pre-tokenized files. Ids and labels are checked against vocab_size. `progress` is called on the
  // calling thread.
  static Dataset open(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
                      ThreadPool& pool, const std::function<void(double fraction)>& progress = {});
  ~Dataset();
  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;

  const DatasetReport& report() const;

  int64_t num_rows() const;
  int64_t num_tokens() const;   // of all rows
  int64_t num_targets() const;  // of all rows, at least 1
  int64_t max_row_length() const;
  int64_t row_length(int64_t row) const;
  // Labels that count as targets after the shift, given the sequence ends. May be 0 for individual rows.
  int64_t row_num_targets(int64_t row) const;
  // Scans all rows.
  bool has_rows_without_targets() const;

  struct Row {
    std::vector<int32_t> input_ids;
    std::vector<int32_t> labels;            // same length; empty = the input_ids themselves
    std::vector<int32_t> sequence_lengths;  // documents in the row (kIsolated), else one entry
  };
  // Overwrites *out, reusing its memory. Thread-safe. Error(kIoError, kBadData) if the cache file fails or
  // changes while in use.
  void read_row(int64_t row, Row* out) const;

 private:
  struct Impl;
  explicit Dataset(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
