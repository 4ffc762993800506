// The documents of a dataset as token ids, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/row_options.h"
#include "data/row_plan.h"
#include "data/row_tokenizer.h"
#include "data/sources/record_source.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// The template that the rows of a plan need; null if they have none.
std::unique_ptr<ChatTemplate> load_chat_template(const RowPlan& plan, const RowOptions& options,
                                                 const Tokenizer* tokenizer);

// Amount that is read and tokenized at a time: by default enough for all threads of a large machine, small
// compared to a model.
struct RowBatch {
  int64_t max_bytes = int64_t{32} << 20;
  int64_t max_documents = 16384;
  bool keeps_text = false;  // in TokenizedRow::text
  // Reads at most this much of a text file that is a single document, for a look at the start of large files.
  int64_t max_document_bytes = std::numeric_limits<int64_t>::max();
  // The files, in place of the plan's, if they are fed while others are read: waits for the next one; null =
  // no more. A batch ends with its file. The result stays as it is until the next call.
  std::function<const SourceFile*()> next_file = {};
};

// Reads the documents in batches of bounded size and tokenizes each batch in parallel; what comes out does
// not depend on the number of threads. Memory: a batch of documents (or a single longer one) and its ids.
class RowStream {
 public:
  // `plan` is not pre-tokenized; plan, options and tokenizer outlive the stream. `tokenizer` may be null if
  // the plan needs none. Error: ChatTemplate::load().
  RowStream(const RowPlan& plan, const RowOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
            ThreadPool* pool, RowBatch batch = {});

  // The next documents and their rows, valid until the next call; false at the end. A row's error is the
  // caller's to throw. Error(kBadData) if a file cannot be read on; with skip_bad_rows, a bad record is a row
  // with an error.
  bool next();
  std::span<const Document> documents() const { return std::span(documents_).first(count_); }
  std::span<const TokenizedRow> rows() const { return std::span(rows_).first(count_); }

  int64_t bytes_read() const { return bytes_before_ + (records_ ? records_->bytes_read() : 0); }

 private:
  bool open_next_file();
  bool read(Document* document);

  const RowPlan& plan_;
  const RowOptions& options_;
  std::unique_ptr<ChatTemplate> chat_template_;
  RowTokenizer row_tokenizer_;
  ThreadPool* pool_;
  RowBatch batch_;
  size_t next_file_ = 0;
  const SourceFile* file_ = nullptr;
  std::unique_ptr<RecordSource> records_;  // of the open file
  int64_t row_in_file_ = 0;                // of the next record
  int64_t bytes_before_ = 0;               // in the files before it
  std::vector<Document> documents_;
  std::vector<TokenizedRow> rows_;
  size_t count_ = 0;
};

}  // namespace tessera
