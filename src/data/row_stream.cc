#include "data/row_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "formats/row_error.h"

namespace tessera {
namespace {

int64_t size_of(const Value& value) {
  int64_t bytes = sizeof(Value);
  if (const std::string* text = value.string()) bytes += std::ssize(*text);
  if (const Value::List* items = value.list()) {
    for (const Value& item : *items) bytes += size_of(item);
  }
  if (const Value::Object* fields = value.object()) {
    for (const Value::Field& field : *fields) bytes += size_of(field.value);
  }
  return bytes;
}

// Frees the memory of unusually long documents before the next batch.
void trim(Document* document, TokenizedRow* row) {
  constexpr size_t kKeptBytes = size_t{64} << 10;
  if (document->record.text.capacity() > kKeptBytes) document->record.text = std::string();
  for (std::vector<int32_t>* values : {&row->ids, &row->labels}) {
    if (values->capacity() * sizeof(int32_t) > kKeptBytes) *values = std::vector<int32_t>();
  }
}

}  // namespace

std::unique_ptr<ChatTemplate> load_chat_template(const RowPlan& plan, const RowOptions& options,
                                                 const Tokenizer* tokenizer) {
  const bool has_chats = plan.has_shape(RowShape::kMessages) || plan.has_shape(RowShape::kConversations) ||
                         plan.has_shape(RowShape::kInstruction);
  // A prompt with its completion may be text or messages.
  const bool may_have_chats =
      plan.has_shape(RowShape::kPromptCompletion) &&
      (!options.chat_template.name_or_file.empty() || has_chat_template(options.chat_folder));
  if (!has_chats && !may_have_chats) return nullptr;
  return std::make_unique<ChatTemplate>(
      ChatTemplate::load(options.chat_folder, *tokenizer, options.chat_template));
}

namespace {

// Axolotl warns of the same: the model would not learn to end its messages.
void warn_of_missing_ends(const RowPlan& plan, const ChatTemplate* chat_template,
                          const Tokenizer* tokenizer) {
  if (chat_template == nullptr || !tokenizer->eos_id()) return;
  const std::string eos = tokenizer->id_to_token(*tokenizer->eos_id());
  const bool names_it = chat_template->source().find(eos) != std::string::npos ||
                        chat_template->source().find("eos_token") != std::string::npos;
  const bool needs_it = std::any_of(plan.files.begin(), plan.files.end(), [](const SourceFile& file) {
    return file.format->turns && file.format->turns->eot_tokens.empty();
  });
  if (names_it || !needs_it) return;
  log_warning(
      "the chat template does not write the end-of-text token '{}', so no token that ends a message is "
      "trained "
      "on: set eot_tokens to the one that the template writes",
      eos);
}

// Says that TRL uses another template, and why this is not done here.
void warn_of_own_template(const RowOptions& options, const ChatTemplate* chat_template) {
  if (chat_template == nullptr || !options.assistant_only_loss || !chat_template->is_replaced_by_trl())
    return;
  log_warning(
      "assistant_only_loss: the model's own chat template is used, whose text the model sees later; TRL has "
      "another one for it, which keeps the thoughts of every answer (or <think></think>) or adds the token "
      "that ends "
      "it: give that with --chat_template for TRL's rows");
}

}  // namespace

RowStream::RowStream(const RowPlan& plan, const RowOptions& options, const Tokenizer* tokenizer,
                     int64_t vocab_size, ThreadPool* pool, RowBatch batch)
    : plan_(plan),
      options_(options),
      chat_template_(load_chat_template(plan, options, tokenizer)),
      row_tokenizer_(options, tokenizer, chat_template_.get(), vocab_size, batch.keeps_text),
      pool_(pool),
      batch_(batch),
      documents_(static_cast<size_t>(batch.max_documents)),
      rows_(static_cast<size_t>(batch.max_documents)) {
  warn_of_missing_ends(plan, chat_template_.get(), tokenizer);
  warn_of_own_template(options, chat_template_.get());
  TESSERA_CHECK(!plan.is_pretokenized && (tokenizer != nullptr || !plan.needs_tokenizer()));
}

bool RowStream::open_next_file() {
  if (batch_.next_file) {
    if (count_ > 0) return false;  // the available ones need not wait
    file_ = batch_.next_file();
    if (file_ == nullptr) return false;
  } else {
    if (next_file_ == plan_.files.size()) return false;
    file_ = &plan_.files[next_file_++];
  }
  records_ = open_records(file_->path, options_.text_per_line || file_->format->has_lines,
                          batch_.max_document_bytes);
  row_in_file_ = 0;
  return true;
}

bool RowStream::read(Document* document) {
  for (;;) {
    if (records_ == nullptr && !open_next_file()) return false;
    document->file = &file_->path;
    document->shape = file_->shape;
    document->format = file_->format;
    while (row_in_file_ < file_->end_row) {
      const bool is_used = row_in_file_++ >= file_->begin_row;  // counted even if it cannot be read
      if (!records_->next(&document->record)) break;
      if (is_used) return true;
    }
    records_.reset();
    bytes_before_ += file_->stamp.size_bytes;
  }
}

bool RowStream::next() {
  for (size_t i = 0; i < count_; ++i) trim(&documents_[i], &rows_[i]);
  count_ = 0;
  std::vector<std::pair<size_t, std::exception_ptr>> unreadable;
  for (int64_t bytes = 0; std::ssize(documents()) < batch_.max_documents && bytes < batch_.max_bytes;
       ++count_) {
    Document& document = documents_[count_];
    try {
      if (!read(&document)) break;
    } catch (const RowError&) {
      if (!options_.skip_bad_rows) throw;
      unreadable.emplace_back(count_, std::current_exception());
      continue;
    }
    bytes += std::ssize(document.record.text) + size_of(document.record.value);
  }
  const auto tokenize = [&](int64_t index) {
    row_tokenizer_.run(&documents_[static_cast<size_t>(index)], &rows_[static_cast<size_t>(index)]);
  };
  if (pool_ != nullptr) {
    pool_->parallel_for(static_cast<int64_t>(count_), tokenize);
  } else {
    for (int64_t index = 0; index < static_cast<int64_t>(count_); ++index) tokenize(index);
  }
  for (const auto& [index, error] : unreadable) rows_[index].error = error;
  return count_ > 0;
}

}  // namespace tessera
