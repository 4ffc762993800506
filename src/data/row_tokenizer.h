// Turns one record of a dataset into token ids and labels.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/row_options.h"
#include "data/sources/record_source.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A record and where it comes from.
struct Document {
  const std::filesystem::path* file = nullptr;
  RowShape shape = RowShape::kText;
  const RowFormat* format = nullptr;
  Record record;

  // "file: line 3"
  std::string where() const;
};

struct TokenizedRow {
  std::string text;             // what was tokenized, if it is kept
  std::vector<int32_t> ids;     // empty if the document has no text
  std::vector<int32_t> labels;  // empty: the ids
  // Lengths of the documents packed into token ids, or of source and target; empty: a single sequence.
  std::vector<int32_t> sequence_lengths;
  std::vector<int32_t> token_types;  // of an encoder's row; empty: all are 0
  int64_t num_cut_tokens = 0;        // of encoders' rows, which are cut here
  bool is_text = false;              // without a prompt or an answer
  bool is_empty_text = false;        // the end-of-text token alone
  bool keeps_masked = false;         // a row without labels stays one: token ids, as in Trainer
  bool is_invalid = false;           // not UTF-8, skipped
  std::exception_ptr error;          // what is wrong with it
};

class RowTokenizer {
 public:
  // `tokenizer` may be null for rows of token ids, `chat_template` unless there are conversations.
  RowTokenizer(const RowOptions& options, const Tokenizer* tokenizer, const ChatTemplate* chat_template,
               int64_t vocab_size, bool keeps_text)
      : options_(options),
        tokenizer_(tokenizer),
        chat_template_(chat_template),
        vocab_size_(vocab_size),
        keeps_text_(keeps_text) {}

  // Overwrites *row; takes the record's value. Never throws: stores the error, so that the first one of
  // several documents can be reported. Thread-safe.
  void run(Document* document, TokenizedRow* row) const;

 private:
  void tokenize(Document* document, TokenizedRow* row) const;
  void add(TextExample example, TokenizedRow* row) const;
  void add(CompletionExample example, TokenizedRow* row) const;
  void add(ChatExample example, TokenizedRow* row) const;
  void add(TokenExample example, TokenizedRow* row) const;
  void add(SegmentsExample example, TokenizedRow* row) const;
  void add(SourceTargetExample example, TokenizedRow* row) const;
  void add_masked(TextExample example, TokenizedRow* row) const;
  void add_apart(CompletionExample example, TokenizedRow* row) const;
  void add_turns(const ChatExample& example, TokenizedRow* row) const;
  void append_eos(TokenizedRow* row) const;
  void ignore_prompt(std::string_view prompt, std::span<const int64_t> barriers, bool add_special_tokens,
                     TokenizedRow* row) const;
  void check_ids(const TokenizedRow& row, const Document& document) const;

  const RowOptions& options_;
  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_template_;
  int64_t vocab_size_;
  bool keeps_text_;
};

}  // namespace tessera
