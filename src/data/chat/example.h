// Interprets a row of a dataset: which of the usual shapes it has, and its content in that shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/value.h"
#include "data/chat/pair_rows.h"
#include "data/chat/prompt_text.h"
#include "data/chat/source_target.h"
#include "data/chat/turn_targets.h"
#include "data/sources/row_slice.h"

namespace tessera {

// kInstruction is Alpaca's; kConversations is ShareGPT's, whose items have `from` and `value`; kMessages is
// OpenAI's, whose items have `role` and `content`. The last two are Axolotl's, never recognised by their
// fields: kPromptText has the columns of Alpaca within the text of a PromptText, kSegments a list of texts
// with a label each. Models with an encoder and a decoder have rows of kSourceTarget or kTokens, others never
// the former.
enum class RowShape {
  kText,
  kPromptCompletion,
  kInstruction,
  kConversations,
  kMessages,
  kTokens,
  kPromptText,
  kSegments,
  kSourceTarget
};

// "text", "prompt_completion", "alpaca", "sharegpt", "messages", "tokens", "prompt_text", "segments",
// "source_target"
const char* row_shape_name(RowShape shape);
std::optional<RowShape> row_shape_by_name(std::string_view name);
std::vector<std::string> row_shape_names();  // of the shapes that are recognised

// The fields of messages, if they are neither OpenAI's nor ShareGPT's.
struct MessageTags {
  std::string role;                                        // "" = role or from
  std::string content;                                     // "" = content or value
  std::vector<std::pair<std::string, std::string>> roles;  // (value of the role's field, OpenAI's role)
  // RowFormat::turns has these: (field of the template's message, field of the row's message).
  std::vector<std::pair<std::string, std::string>> properties = {};
  bool operator==(const MessageTags&) const = default;
};

// The name of a column that no row has, for fields that are never read.
constexpr std::string_view kNoColumn = "\x1f";

// Settings for reading the rows of a dataset.
struct RowFormat {
  std::optional<RowShape> shape = {};  // recognised from the first row if unset
  std::string text_column = "text";
  bool drops_empty_text = false;  // as Axolotl
  // (field, column): the column that holds what the shape calls `field`, such as ("messages", "dialog").
  std::vector<std::pair<std::string, std::string>> columns = {};
  MessageTags tags = {};
  std::optional<RowSlice> rows = {};      // only these
  std::optional<PromptText> prompt = {};  // of kPromptText
  std::optional<TurnTargets> turns = {};  // kMessages are read and trained on by these rules
  bool has_lines = false;                 // of a text file, every line is a row, as with text_per_line
  std::string variables = {};             // with turns, JSON: further variables of the template
  std::optional<PairRules> pairs = {};    // read by LLaMA-Factory's rules
  std::optional<SourceTargetColumns> source_target = {};  // of a model with an encoder and a decoder
  bool is_masked = false;  // of an encoder, which predicts tokens in place: texts and token ids alone
  bool operator==(const RowFormat&) const = default;
};

struct TextExample {
  std::string text;
  bool is_row = false;  // also if it is empty
};

struct CompletionExample {
  std::string prompt;
  std::string completion;
  bool is_tokenized_apart = false;  // prompt and completion are two texts for the tokenizer
};

// A source and its target, for a model with an encoder and a decoder; no texts: no row.
struct SourceTargetExample {
  std::optional<SourceTargetTexts> texts;
};

struct SegmentsExample {
  struct Segment {
    std::string text;
    bool is_target = false;
  };
  std::vector<Segment> segments;
};

struct ChatExample {
  // Objects with a string `role`; text parts of `content` are joined. `weight`, 0 or 1, says whether a
  // message is a target; templates do not see it.
  Value::List messages;
  Value tools;                         // a list of JSON schemas, or null
  Value::Object more;                  // further variables of the template (chat_template_kwargs)
  int64_t num_prompt_messages = 0;     // this many at the start are the prompt: what follows are the targets
  bool has_answers = false;            // alpaca: the assistant's messages are the targets
  const TurnTargets* turns = nullptr;  // of the row's format: what decides on targets instead
  std::vector<MessageMarks> marks;     // with turns, of every message
};

struct TokenExample {
  std::vector<int32_t> input_ids;
  // Empty: the ids. Of a source and its target: the target's, of their own length, without kIgnoredLabel at
  // the end.
  std::vector<int32_t> labels;
  std::vector<int32_t> completion_mask;   // 1 where a target may be; empty: everywhere
  std::vector<int32_t> sequence_lengths;  // of the documents in it; empty: one
  std::vector<int32_t> token_types;       // of an encoder's row; empty: all are 0
};

using Example = std::variant<TextExample, CompletionExample, ChatExample, TokenExample, SegmentsExample,
                             SourceTargetExample>;

// Takes kIgnoredLabel from the end: padding of labels.
void drop_ignored_end(std::vector<int32_t>* labels);

// The column that holds `field`.
std::string_view column_of(std::string_view field, const RowFormat& format);

// The shape by the columns that have a value, columns renamed; nullopt if there is none. If several fit,
// TRL's order decides: token ids, then a prompt with its completion, then messages, then text.
std::optional<RowShape> recognise_shape(const Value& row, const RowFormat& format);

// The shape of a dataset whose first row this is: format.shape, or what is recognised; where columns of a
// shape are there without a value, that shape, and *is_certain (if not null) becomes false. Error(kBadData)
// starting with `where`: an unknown shape (says which fields there are, and which shapes).
RowShape shape_of_first_row(const Value& row, const RowFormat& format, const std::string& where,
                            bool* is_certain = nullptr);

// Moves out of `row`. Error(kBadData) starting with `where`, a file and place: not an object; a field of the
// shape is missing or of another kind; the row has another shape (names both).
Example read_example(Value row, RowShape shape, const RowFormat& format, const std::string& where);

}  // namespace tessera
