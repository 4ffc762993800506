#include "data/text_rows.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/json_text.h"
#include "data/sources/record_reader.h"
#include "data/rows/row_builder.h"
#include "formats/input_files.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Text held in memory at a time: enough for all threads of a large machine, small compared to a model.
constexpr int64_t kBatchBytes = int64_t{32} << 20;
constexpr size_t kBatchDocuments = 16384;

struct Document {
  const fs::path* file = nullptr;
  InputKind kind = InputKind::kText;
  Record record;
};

// Reads all documents of several files, in order.
class DocumentReader {
 public:
  DocumentReader(std::span<const fs::path> files, bool text_per_line)
      : files_(files), text_per_line_(text_per_line) {}

  bool next(Document* document) {
    while (records_ || next_file_ < files_.size()) {
      if (!records_) open_next_file();
      document->file = file_;
      document->kind = kind_;
      if (!records_) {
        read_whole(&document->record);
        return true;
      }
      if (records_->next(&document->record)) return true;
      records_.reset();
      bytes_before_ += input_.size_bytes();
    }
    return false;
  }

  int64_t bytes_read() const { return bytes_before_ + (records_ ? offset_bytes_ : 0); }

 private:
  void open_next_file() {
    file_ = &files_[next_file_++];
    kind_ = input_kind(*file_);
    input_ = InputFile::open(*file_);
    offset_bytes_ = 0;
    if (kind_ == InputKind::kText && !text_per_line_) return;
    const auto format =
        kind_ == InputKind::kJson ? RecordReader::Format::kJson : RecordReader::Format::kLines;
    records_ = std::make_unique<RecordReader>(
        format, [this](std::span<char> destination) { return read_some(destination); }, file_->string());
  }

  void read_whole(Record* record) {
    record->text.resize(static_cast<size_t>(input_.size_bytes()));
    input_.read_at(0, std::as_writable_bytes(std::span(record->text)));
    record->line = 1;
    record->offset_bytes = 0;
    if (record->text.starts_with(kByteOrderMark)) {
      record->text.erase(0, kByteOrderMark.size());
      record->offset_bytes = static_cast<int64_t>(kByteOrderMark.size());
    }
    bytes_before_ += input_.size_bytes();
  }

  int64_t read_some(std::span<char> destination) {
    const int64_t count =
        std::min(static_cast<int64_t>(destination.size()), input_.size_bytes() - offset_bytes_);
    input_.read_at(offset_bytes_, std::as_writable_bytes(destination.first(static_cast<size_t>(count))));
    offset_bytes_ += count;
    return count;
  }

  std::span<const fs::path> files_;
  bool text_per_line_;
  size_t next_file_ = 0;
  const fs::path* file_ = nullptr;
  InputKind kind_ = InputKind::kText;
  InputFile input_;
  std::unique_ptr<RecordReader> records_;  // of the open file, if it has several documents
  int64_t offset_bytes_ = 0;               // read so far in the open file
  int64_t bytes_before_ = 0;               // in the files before it
};

[[noreturn]] void fail_not_utf8(const Document& document, int64_t at) {
  const std::string& text = document.record.text;
  const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(at)]);
  fail(ExitCode::kBadData,
       "{}: line {}: byte offset {}: expected UTF-8, found byte 0x{:02x}: convert the file, or skip such "
       "documents (skip_invalid_utf8)",
       document.file->string(), document.record.line + std::count(text.begin(), text.begin() + at, '\n'),
       document.record.offset_bytes + at, byte);
}

struct Tokens {
  std::vector<int32_t> ids;  // empty if the document has no text
  bool is_invalid = false;   // not UTF-8
  std::exception_ptr error;
};

class DocumentTokenizer {
 public:
  DocumentTokenizer(const DatasetOptions& options, const Tokenizer& tokenizer, int64_t vocab_size)
      : options_(options), tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  // Never throws: stores the error, so that the first one of a batch can be reported.
  void run(const Document& document, Tokens* tokens) const {
    tokens->ids.clear();
    tokens->is_invalid = false;
    tokens->error = nullptr;
    try {
      tokenize(document, tokens);
    } catch (...) {
      tokens->error = std::current_exception();
    }
  }

 private:
  void tokenize(const Document& document, Tokens* tokens) const {
    if (const int64_t at = find_invalid_utf8(document.record.text); at >= 0) {
      if (!options_.skip_invalid_utf8) fail_not_utf8(document, at);
      tokens->is_invalid = true;
      return;
    }
    if (document.kind == InputKind::kJson) {
      encode(document,
             extract_json_text(document.record.text, options_.text_column, document.file->string(),
                               document.record.line),
             &tokens->ids);
    } else {
      encode(document, document.record.text, &tokens->ids);
    }
  }

  void encode(const Document& document, std::string_view text, std::vector<int32_t>* ids) const {
    if (text.empty()) return;
    tokenizer_.encode(text, options_.add_special_tokens, ids);
    const auto bad =
        std::find_if(ids->begin(), ids->end(), [this](int32_t id) { return id < 0 || id >= vocab_size_; });
    if (bad != ids->end()) {
      fail(ExitCode::kBadData,
           "{}: line {}: token id {} ('{}') is not below the model's vocab_size {}: the tokenizer belongs to "
           "another model",
           document.file->string(), document.record.line, *bad, printable(tokenizer_.id_to_token(*bad)),
           vocab_size_);
    }
  }

  const DatasetOptions& options_;
  const Tokenizer& tokenizer_;
  int64_t vocab_size_;
};

// Appends the rows of tokenized documents, in order.
void append_rows(std::span<const Tokens> documents, RowBuilder* rows, CacheCounts* counts) {
  for (const Tokens& tokens : documents) {
    if (tokens.error) std::rethrow_exception(tokens.error);
    if (tokens.is_invalid) {
      ++counts->num_invalid_documents;
    } else if (tokens.ids.empty()) {
      ++counts->num_empty_documents;
    } else {
      rows->add_document(tokens.ids);
    }
  }
}

// Frees the memory of unusually long documents before the next batch.
void trim(Document* document, Tokens* tokens) {
  constexpr size_t kKeptBytes = size_t{64} << 10;
  if (document->record.text.capacity() > kKeptBytes) document->record.text = std::string();
  if (tokens->ids.capacity() * sizeof(int32_t) > kKeptBytes) tokens->ids = std::vector<int32_t>();
}

}  // namespace

CacheCounts append_text_rows(std::span<const fs::path> files, const DatasetOptions& options,
                             const Tokenizer& tokenizer, int64_t vocab_size, ThreadPool& pool,
                             const std::function<void(int64_t)>& progress, TokenCacheWriter* writer) {
  CacheCounts counts;
  RowBuilder rows(options.packing, options.max_length, tokenizer.eos_id(), writer, &counts);
  const DocumentTokenizer document_tokenizer(options, tokenizer, vocab_size);
  DocumentReader reader(files, options.text_per_line);
  std::vector<Document> documents(kBatchDocuments);
  std::vector<Tokens> tokens(kBatchDocuments);
  for (bool more = true; more;) {
    size_t count = 0;
    for (int64_t bytes = 0; count < kBatchDocuments && bytes < kBatchBytes; ++count) {
      more = reader.next(&documents[count]);
      if (!more) break;
      bytes += static_cast<int64_t>(documents[count].record.text.size());
    }
    pool.parallel_for(static_cast<int64_t>(count), [&](int64_t index) {
      document_tokenizer.run(documents[static_cast<size_t>(index)], &tokens[static_cast<size_t>(index)]);
    });
    append_rows(std::span(tokens).first(count), &rows, &counts);
    for (size_t i = 0; i < count; ++i) trim(&documents[i], &tokens[i]);
    progress(reader.bytes_read());
  }
  rows.finish();
  return counts;
}

}  // namespace tessera
