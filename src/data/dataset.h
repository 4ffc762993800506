// Token rows of a dataset: text, tables and conversations, tokenized once into a cache file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/cache/document_counts.h"
#include "data/row_options.h"
#include "data/row_plan.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

class RowSupply;
class StreamedRows;
class TokenCache;

// Token positions and row lengths are 32 bits wide. As a max_length it means that rows are not cut.
inline constexpr int64_t kMaxRowLength = int64_t{1} << 30;

// A folder into which another process writes rows while they are used (RowSpool), which a start of a run
// reads once; `reading` names the start, the same on all ranks.
struct SpoolOptions {
  std::filesystem::path folder;
  std::string reading;
};

struct DatasetOptions : RowOptions {
  // In this order; either all have weights or none. By extension: .jsonl, .ndjson and .json are JSON (an
  // object per line, or an array of objects), .csv, .tsv and .parquet tables, .safetensors is pre-tokenized,
  // anything else is text; a further .gz or .zst is decompressed. Pre-tokenized files cannot be mixed with
  // others.
  std::vector<DataSource> sources;
  int64_t max_length = 1024;  // tokens per row, at least 2; with source_target, the most that rows can have
  // Documents of text and completions end in EOS with and without packing, a chat ends as its template says.
  // Pre-tokenized files are never packed.
  Packing packing = Packing::kNone;
  // Cut rows to max_length even if that drops more than a tenth of all tokens.
  bool allow_truncation = false;
  std::filesystem::path cache_folder;  // empty = $XDG_CACHE_HOME/tessera or ~/.cache/tessera

  // Tokenize in the background: rows are used as they appear, in blocks of streaming_buffer_rows, each
  // shuffled separately.
  bool streaming = false;
  int64_t streaming_buffer_rows = 16384;
  // Stream the rows of this one; the only source is its RowSpool::first_file().
  std::optional<SpoolOptions> spool = {};
  std::function<void()> while_waiting;  // called while rows are waited for; may throw
};

// Makes the rows those of a model with an encoder and a decoder, with the columns of sources that have none
// of their own. Sets max_length to what such rows can have.
void use_sources_and_targets(const SourceTarget& limits, const SourceTargetColumns& columns,
                             DatasetOptions* options);

// Makes folders with splits read the one for evaluation: the validation split, or else the test split.
void use_evaluation_splits(DatasetOptions* options);

// Statistics of a dataset; the same whether its rows were built now or came from the cache.
struct DatasetReport : DocumentCounts {
  int64_t num_files = 0;
  bool cache_hit = false;
  std::filesystem::path cache_file;  // of the first source
  // One line each, for the user: files skipped in folders, documents dropped or cut, a damaged cache that was
  // rebuilt.
  std::vector<std::string> warnings;
};

// Rows that belong together in a mixture.
struct MixturePart {
  int64_t num_rows;
  double weight;
};

// Rows are numbered in the order of the files and of the documents in them. A document is a text file, a line
// of one, or the row of a table or JSON file, which has one of the shapes of data/chat/example.h. Text is
// used verbatim, except that a byte order mark at the start of a file is dropped, and so are line ends (LF,
// CRLF) if documents are lines. Empty documents are dropped.
//
// A pre-tokenized file has a tensor input_ids of any integer type, whose last axis is the row and whose other
// axes are taken in order, and may have labels of the same shape (an id, or -100 for no target) and an
// attention_mask of ones; its rows are cut to max_length.
//
// Rows are read on demand from the cache file with explicit reads, so memory stays bounded for any size (16
// bytes per row; a few times the longest document while tokenizing). The cache file's name is a hash of the
// files' contents, the settings and the tokenizer. Several runs may share a cache folder; if several
// processes need the same file at once, one builds it while the others wait (and call `progress` with 0,
// which may throw).
class Dataset {
 public:
  // Errors name file, line and column: kNoInput (no such file), kBadData (not UTF-8, not JSON, no such
  // column, not text, unsupported format, empty, id outside the vocabulary, no target in any row), kBadConfig
  // (settings, no chat template, more than a tenth of the tokens cut), kIoError (cache folder). `tokenizer`
  // may be null only for rows of token ids. Ids and labels are checked against vocab_size. `progress` is
  // called on the calling thread.
  static Dataset open(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
                      ThreadPool& pool, const std::function<void(double fraction)>& progress = {});
  const DatasetReport& report() const { return report_; }
  // The packing of the first source's rows: never kByRows.
  Packing packing() const { return packing_; }
  // The sources with their weights, one part of the rows each; a single part without weights.
  const std::vector<MixturePart>& mixture() const { return mixture_; }
  // The rows of a stream, whose number is not known: num_rows(), num_tokens() and num_targets() are 0, and
  // max_row_length() is the most there may be. Null for other datasets.
  const RowSupply* supply() const;
  // A hash that covers files, settings, tokenizer, weights and split.
  std::string fingerprint() const;
  // Takes the first `percent` % of the rows of every part (at least one, and not all) out of this dataset and
  // returns them as another one. Error(kBadData) if a part has a single row.
  Dataset split_off(double percent);

  // Whether every row is two sequences, a source and its target (data/source_target_rows.h).
  bool has_sources() const { return has_sources_; }
  // Set for an encoder, whose rows are kept as data/masked_rows.h says; null for other models.
  const MaskingRule* masking() const { return masking_ ? &*masking_ : nullptr; }

  int64_t num_rows() const { return num_rows_; }
  // Tokens of all rows that a model computes: all that a row has but the last one of a target, and of a row
  // with labels in place.
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_targets() const { return num_targets_; }  // of all rows, at least 1
  int64_t max_row_length() const { return max_row_length_; }
  int64_t row_length(int64_t row) const;  // as num_tokens() counts
  // Tokens of a row's input_ids: the source alone if there are sources. Trainer groups rows by this length.
  // Errors as read_row().
  int64_t num_input_ids(int64_t row) const;
  // Labels that count as targets after the shift, given the sequence ends. May be 0 for individual rows. If
  // tokens are masked, as many as there may be: count_row_targets() (rows/token_masks.h) says how many are.
  int64_t row_num_targets(int64_t row) const;

  struct Row {
    std::vector<int32_t> input_ids;
    std::vector<int32_t> labels;  // same length; empty = the input_ids themselves
    // Documents in the row if isolated, source and target if has_sources(), otherwise one.
    std::vector<int32_t> sequence_lengths;
    std::vector<int32_t> token_types;  // of an encoder's row; empty = all are 0
  };
  // Overwrites *out, reusing its memory. Thread-safe. Error(kIoError, kBadData) if the cache file fails or
  // changes while in use.
  void read_row(int64_t row, Row* out) const;

 private:
  struct Part {
    std::shared_ptr<const TokenCache> cache;
    std::string name;  // CachedRows::fingerprint
    int64_t begin;     // in the cache
    int64_t num_rows;  // of the cache
  };
  Dataset() = default;
  void count();
  // Tokens of a row of this cache that no model computes.
  int64_t num_extra_tokens(const TokenCache& cache) const;
  // The part that holds *row, which becomes a row of its cache.
  std::shared_ptr<const TokenCache> locate(int64_t* row) const;

  std::shared_ptr<StreamedRows> stream_;
  std::vector<Part> parts_;
  std::vector<MixturePart> mixture_;
  DatasetReport report_;
  Packing packing_ = Packing::kNone;
  bool has_sources_ = false;
  std::optional<MaskingRule> masking_;
  int64_t vocab_size_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_targets_ = 0;
  int64_t max_row_length_ = 0;
};

}  // namespace tessera
