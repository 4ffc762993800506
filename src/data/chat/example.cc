#include "data/chat/example.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/expect_kind.h"
#include "data/chat/messages.h"
#include "data/chat/pair_reader.h"
#include "data/chat/row_columns.h"
#include "data/chat/turn_messages.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

struct ShapeInfo {
  RowShape shape;
  const char* name;
  std::vector<std::string_view> fields;  // of a row with this shape
  bool is_recognised = true;
};

// In the order in which they are recognised.
const std::array<ShapeInfo, 9>& shapes() {
  static const std::array<ShapeInfo, 9> kShapes = {{
      {RowShape::kTokens, "tokens", {"input_ids"}},
      {RowShape::kPromptCompletion, "prompt_completion", {"prompt", "completion"}},
      {RowShape::kMessages, "messages", {"messages"}},
      {RowShape::kConversations, "sharegpt", {"conversations"}},
      {RowShape::kText, "text", {"text"}},
      {RowShape::kInstruction, "alpaca", {"instruction", "output"}},
      {RowShape::kPromptText, "prompt_text", {"instruction"}, false},
      {RowShape::kSegments, "segments", {"segments"}, false},
      {RowShape::kSourceTarget, "source_target", {"source", "target"}, false},
  }};
  return kShapes;
}

const ShapeInfo& info_of(RowShape shape) {
  return *std::find_if(shapes().begin(), shapes().end(),
                       [shape](const ShapeInfo& info) { return info.shape == shape; });
}

// Reads the fields of one row.
class RowReader {
 public:
  RowReader(Value row, RowShape shape, const RowFormat& format, const std::string& where)
      : row_(std::move(row)), format_(format), where_(where), reads_system_(reads_system(shape, format)) {}

  // Null if there is no such column or its value is null.
  Value* find(std::string_view field) {
    Value* value = row_.find(column_of(field, format_));
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string where(std::string_view field) const {
    return fmt::format("{}: column '{}'", where_, printable(column_of(field, format_)));
  }
  std::string text(std::string_view field) {
    Value* value = row_.find(column_of(field, format_));
    if (value == nullptr) fail(ExitCode::kBadData, "{}: missing", where(field));
    if (value->find("bytes") != nullptr)
      fail(ExitCode::kBadData, "{}: expected a string, found bytes that are not UTF-8", where(field));
    return std::move(expect_string(value, where(field)));
  }
  std::string text_or_empty(std::string_view field) {
    return find(field) == nullptr ? std::string() : text(field);
  }

  // The messages under `field`, and the template's other variables.
  ChatExample chat(std::string_view field) {
    ChatExample example;
    add_variables(&example);
    if (field == "conversations") wrap_functions(&example.tools);
    const bool has_system = !example.messages.empty();
    add_messages(field, &example);
    // LLaMA-Factory does the same: a system message of the conversation replaces the column's.
    if (has_system && example.messages.size() > 1 && *example.messages[1].find("role") == Value("system"))
      example.messages.erase(example.messages.begin());
    drop_filled_nulls(&example.tools, &example.messages);
    return example;
  }

  void add_variables(ChatExample* example) {
    if (Value* tools = find("tools")) example->tools = read_tools(std::move(*tools), where("tools"));
    // OpenAI's name for them before.
    if (Value* functions = find("functions"); functions != nullptr && example->tools.is_null()) {
      example->tools = read_tools(std::move(*functions), where("functions"));
      wrap_functions(&example->tools);
    }
    if (Value* more = find("chat_template_kwargs"))
      example->more = std::move(expect_object(more, where("chat_template_kwargs")));
    // Like LLaMA-Factory, takes an empty text for none: tables have one where there is no system message.
    if (std::string system = reads_system_ ? text_or_empty("system") : ""; !system.empty())
      add_message("system", std::move(system), &example->messages);
  }

  void add_messages(std::string_view field, ChatExample* example) {
    Value* value = find(field);
    if (value == nullptr) fail_kind(value, where(field), "a list of messages");
    append_messages(std::move(*value), format_.tags, where(field), &example->messages);
  }

  Example prompt_completion() {
    Value* prompt = find("prompt");
    if (prompt == nullptr || prompt->list() == nullptr)
      return CompletionExample{text("prompt"), text("completion")};
    ChatExample example;
    add_variables(&example);
    add_messages("prompt", &example);
    example.num_prompt_messages = std::ssize(example.messages);
    if (example.messages.empty())
      fail(ExitCode::kBadData, "{}: expected a message, found none", where("prompt"));
    add_messages("completion", &example);
    drop_filled_nulls(&example.tools, &example.messages);
    return example;
  }

  // LLaMA-Factory reads it so: earlier turns in `history`, then instruction and input as the user's message.
  ChatExample instruction() {
    ChatExample example;
    add_variables(&example);
    wrap_functions(&example.tools);
    if (Value* history = find("history"))
      append_history(std::move(*history), where("history"), &example.messages);
    std::string question = text("instruction");
    if (const std::string input = text_or_empty("input"); !input.empty())
      question += (question.empty() ? "" : "\n") + input;
    add_message("user", std::move(question), &example.messages);
    add_message("assistant", text("output"), &example.messages);
    example.has_answers = true;
    return example;
  }

  // A missing or null column is an empty text, as in Axolotl, except the instruction.
  CompletionExample prompt_text() {
    const std::string instruction = text("instruction");
    const std::string input = text_or_empty("input");
    const bool has_system = row_.find(column_of("system", format_)) != nullptr;
    const std::string system = text_or_empty("system");
    return {format_.prompt->render(instruction, input, has_system ? &system : nullptr),
            text_or_empty("output"), true};
  }

  SegmentsExample segments() {
    SegmentsExample example;
    Value* items = find("segments");
    if (items == nullptr || items->list() == nullptr)
      fail(ExitCode::kBadData, "{}: expected a list of objects with label and text", where("segments"));
    for (Value& item : *items->list()) {
      std::string* text = item.find_string("text");
      const Value* label = item.find("label");
      if (text == nullptr || label == nullptr || label->boolean() == nullptr)
        fail(ExitCode::kBadData, "{}: expected objects with a boolean 'label' and a string 'text'",
             where("segments"));
      example.segments.push_back({std::move(*text), *label->boolean()});
    }
    return example;
  }

  // Labels as TRL makes them: given labels, or else the ids where every mask is 1.
  TokenExample tokens() {
    TokenExample example;
    example.input_ids = integers("input_ids");
    const size_t num_ids = example.input_ids.size();
    if (find("labels") != nullptr) {
      example.labels = integers("labels");
      check_same_length("labels", example.labels, num_ids);
    } else {
      if (find("completion_mask") != nullptr) example.completion_mask = mask("completion_mask", num_ids);
      if (find("assistant_masks") != nullptr) {
        const std::vector<int32_t> answers = mask("assistant_masks", num_ids);
        for (size_t i = 0; i < num_ids; ++i)
          example.labels.push_back(answers[i] == 1 ? example.input_ids[i] : kIgnoredLabel);
      }
    }
    std::vector<int32_t> positions;
    if (find("position_ids") != nullptr) {
      positions = integers("position_ids");
      check_same_length("position_ids", positions, num_ids);
    }
    if (find("attention_mask") != nullptr) {
      const std::vector<int32_t> attention = mask("attention_mask", num_ids);
      drop_padding(attention, {&example.input_ids, &example.labels, &example.completion_mask, &positions});
    }
    example.sequence_lengths = documents_in(positions, example.input_ids.size());
    return example;
  }

  // A source with labels of its own length, as DataCollatorForSeq2Seq pads them.
  TokenExample source_and_labels() {
    for (const char* field :
         {"decoder_input_ids", "completion_mask", "assistant_masks", "position_ids", "seq_lengths"}) {
      if (find(field) == nullptr) continue;
      fail(ExitCode::kBadData,
           "{}: not supported for a model with an encoder and a decoder, whose decoder reads the labels, "
           "shifted: leave the column out",
           where(field));
    }
    TokenExample example;
    example.input_ids = integers("input_ids");
    if (find("attention_mask") != nullptr)
      drop_padding(mask("attention_mask", example.input_ids.size()), {&example.input_ids});
    if (example.input_ids.empty())
      fail(ExitCode::kBadData, "{}: expected an id, found none", where("input_ids"));
    example.labels = integers("labels");
    drop_ignored_end(&example.labels);
    return example;
  }

  // Tokens and, if there are any, the labels in their places, -100 where nothing is predicted.
  TokenExample masked_tokens() {
    for (const char* field : {"completion_mask", "assistant_masks", "position_ids", "seq_lengths"}) {
      if (find(field) == nullptr) continue;
      fail(ExitCode::kBadData,
           "{}: not supported for an encoder, whose rows are one text each with input_ids, labels and "
           "attention_mask: leave the column out",
           where(field));
    }
    TokenExample example;
    example.input_ids = integers("input_ids");
    const size_t num_ids = example.input_ids.size();
    if (find("labels") != nullptr) {
      example.labels = integers("labels");
      check_same_length("labels", example.labels, num_ids);
    }
    if (find("token_type_ids") != nullptr) {
      example.token_types = integers("token_type_ids");
      check_same_length("token_type_ids", example.token_types, num_ids);
    }
    if (find("attention_mask") != nullptr)
      drop_padding(mask("attention_mask", num_ids),
                   {&example.input_ids, &example.labels, &example.token_types});
    return example;
  }

 private:
  std::vector<int32_t> integers(std::string_view field) {
    const Value::List& list = expect_list(find(field), where(field), "a list of integers");
    std::vector<int32_t> numbers;
    numbers.reserve(list.size());
    for (const Value& item : list) {
      if (item.integer() == nullptr || !std::in_range<int32_t>(*item.integer())) {
        fail(ExitCode::kBadData, "{}: value {}: expected an integer of 32 bits, found {}", where(field),
             numbers.size(), item.integer() == nullptr ? item.kind_name() : std::to_string(*item.integer()));
      }
      numbers.push_back(static_cast<int32_t>(*item.integer()));
    }
    return numbers;
  }

  // Zeros and ones, or booleans.
  std::vector<int32_t> mask(std::string_view field, size_t num_ids) {
    if (Value* value = find(field); value->list() != nullptr) {
      for (Value& item : *value->list()) {
        if (const bool* flag = item.boolean()) item = static_cast<int64_t>(*flag);
      }
    }
    std::vector<int32_t> values = integers(field);
    check_same_length(field, values, num_ids);
    const auto bad = std::find_if(values.begin(), values.end(), [](int32_t v) { return v != 0 && v != 1; });
    if (bad != values.end())
      fail(ExitCode::kBadData, "{}: value {}: expected 0 or 1, found {}", where(field), bad - values.begin(),
           *bad);
    return values;
  }

  void check_same_length(std::string_view field, const std::vector<int32_t>& found, size_t expected) const {
    if (found.size() != expected) {
      fail(ExitCode::kBadData, "{}: expected {} as input_ids has, found {}", where(field),
           format_count(static_cast<int64_t>(expected), "value"), found.size());
    }
  }

  // Keeps the values whose mask is 1, which are in one stretch.
  void drop_padding(const std::vector<int32_t>& mask,
                    std::initializer_list<std::vector<int32_t>*> all) const {
    const auto begin = std::find(mask.begin(), mask.end(), 1);
    const auto end = std::find(begin, mask.end(), 0);
    if (std::find(end, mask.end(), 1) != mask.end()) {
      fail(ExitCode::kBadData, "{}: expected ones, with zeros before or after them for padding",
           where("attention_mask"));
    }
    for (std::vector<int32_t>* values : all) {
      if (values->empty()) continue;
      values->erase(values->begin() + (end - mask.begin()), values->end());
      values->erase(values->begin(), values->begin() + (begin - mask.begin()));
    }
  }

  // The lengths of the documents that are packed into the row, by seq_lengths as TRL writes them or by
  // positions that start again; empty for one.
  std::vector<int32_t> documents_in(const std::vector<int32_t>& positions, size_t num_ids) {
    std::vector<int32_t> lengths;
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] == 0) lengths.push_back(0);
      if (lengths.empty() || positions[i] != lengths.back()) {
        fail(ExitCode::kBadData, "{}: value {}: expected {}, found {}", where("position_ids"), i,
             lengths.empty() ? "0" : fmt::format("{}, or 0 where a document begins", lengths.back()),
             positions[i]);
      }
      ++lengths.back();
    }
    if (find("seq_lengths") != nullptr) {
      std::vector<int32_t> given = integers("seq_lengths");
      const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
      if (std::cmp_not_equal(sum, num_ids) ||
          std::any_of(given.begin(), given.end(), [](int32_t n) { return n < 1; })) {
        fail(ExitCode::kBadData,
             "{}: expected lengths of 1 or more that add up to the {} of input_ids, found {}",
             where("seq_lengths"), format_count(static_cast<int64_t>(num_ids), "value"),
             fmt::join(given, ", "));
      }
      if (!lengths.empty() && lengths != given) {
        fail(ExitCode::kBadData, "{}: found {}, but position_ids start again after {}", where("seq_lengths"),
             fmt::join(given, ", "), fmt::join(lengths, ", "));
      }
      lengths = std::move(given);
    }
    if (lengths.size() == 1) lengths.clear();
    return lengths;
  }

  Value row_;
  const RowFormat& format_;
  const std::string& where_;
  bool reads_system_;
};

// Whether a row has the columns of a shape, with or without values.
bool has_columns(const Value& row, const ShapeInfo& info, const RowFormat& format) {
  return std::all_of(info.fields.begin(), info.fields.end(),
                     [&](std::string_view field) { return row.find(column_of(field, format)) != nullptr; });
}

bool has_shape(const Value& row, const ShapeInfo& info, const RowFormat& format) {
  return std::all_of(info.fields.begin(), info.fields.end(), [&](std::string_view field) {
    const Value* value = row.find(column_of(field, format));
    return value != nullptr && !value->is_null();
  });
}

}  // namespace

void drop_ignored_end(std::vector<int32_t>* labels) {
  while (!labels->empty() && labels->back() == kIgnoredLabel) labels->pop_back();
}

std::string_view column_of(std::string_view field, const RowFormat& format) {
  for (const auto& [name, column] : format.columns) {
    if (name == field) return column;
  }
  return field == "text" ? std::string_view(format.text_column) : field;
}

const char* row_shape_name(RowShape shape) { return info_of(shape).name; }

std::optional<RowShape> row_shape_by_name(std::string_view name) {
  for (const ShapeInfo& info : shapes()) {
    if (info.name == name) return info.shape;
  }
  return std::nullopt;
}

std::vector<std::string> row_shape_names() {
  std::vector<std::string> names;
  for (const ShapeInfo& info : shapes()) {
    if (info.is_recognised) names.emplace_back(info.name);
  }
  return names;
}

std::optional<RowShape> recognise_shape(const Value& row, const RowFormat& format) {
  // A text column that was given explicitly is wanted, whatever other columns there are.
  if (format.text_column != "text" && row.find(format.text_column) != nullptr) return RowShape::kText;
  for (const ShapeInfo& info : shapes()) {
    if (info.is_recognised && has_shape(row, info, format)) return info.shape;
  }
  return std::nullopt;
}

RowShape shape_of_first_row(const Value& row, const RowFormat& format, const std::string& where,
                            bool* is_certain) {
  expect_object(&row, where);
  if (is_certain != nullptr) *is_certain = true;
  if (format.shape) return *format.shape;
  if (format.source_target) {
    if (row.find(column_of("input_ids", format)) != nullptr) return RowShape::kTokens;
    if (find_source_target(row, *format.source_target, &where)) return RowShape::kSourceTarget;
    fail(ExitCode::kBadData, "{}: the model has an encoder and a decoder: expected {}; found {}{}", where,
         expected_source_target(*format.source_target), columns_text(row),
         row.find("translation") == nullptr ? "" : ": set source_lang and target_lang");
  }
  if (format.is_masked) {
    if (row.find(column_of("input_ids", format)) != nullptr) return RowShape::kTokens;
    if (row.find(column_of("text", format)) != nullptr) return RowShape::kText;
    fail(ExitCode::kBadData,
         "{}: the model is an encoder, which predicts masked tokens: expected the column {}, or input_ids; "
         "found "
         "{}: name the column of the text with --text_column",
         where, column_of("text", format), columns_text(row));
  }
  if (const std::optional<RowShape> shape = recognise_shape(row, format)) return *shape;
  for (const ShapeInfo& info : shapes()) {
    if (!has_columns(row, info, format)) continue;
    if (is_certain != nullptr) *is_certain = false;
    return info.shape;
  }
  if (format.text_column != "text") {
    fail(ExitCode::kBadData, "{}: no column '{}' (text_column); columns found: {}", where,
         printable(format.text_column), columns_text(row));
  }
  std::vector<std::string> known;
  for (const ShapeInfo& info : shapes()) {
    if (info.is_recognised) known.push_back(fmt::format("{}", fmt::join(info.fields, " and ")));
  }
  fail(
      ExitCode::kBadData,
      "{}: expected the columns {}; found {}: name the column of the text with --text_column, or others with "
      "--column_mapping",
      where, fmt::join(known, ", or "), columns_text(row));
}

Example read_example(Value row, RowShape shape, const RowFormat& format, const std::string& where) {
  expect_object(&row, where);
  check_unread_columns(row, shape, format, where);
  if (format.pairs) return read_pairs(std::move(row), shape, format, where);
  if (shape == RowShape::kSourceTarget)
    return SourceTargetExample{read_source_target(std::move(row), *format.source_target, where)};
  if (!has_shape(row, info_of(shape), format)) {
    const std::optional<RowShape> other = recognise_shape(row, format);
    if (other && *other != shape && !format.shape) {
      fail(ExitCode::kBadData,
           "{}: found the shape {}, but earlier rows have the shape {}: a dataset has one shape of rows",
           where, row_shape_name(*other), row_shape_name(shape));
    }
    std::vector<std::string_view> columns;
    for (const std::string_view field : info_of(shape).fields) columns.push_back(column_of(field, format));
    if (!has_columns(row, info_of(shape), format))
      fail(ExitCode::kBadData, "{}: expected the {} {} of the shape {}, found the columns {}", where,
           columns.size() == 1 ? "column" : "columns", fmt::join(columns, " and "), row_shape_name(shape),
           columns_text(row));
  }
  if (shape == RowShape::kMessages && format.turns) return read_turns(std::move(row), format, where);
  RowReader reader(std::move(row), shape, format, where);
  switch (shape) {
    case RowShape::kText:
      // A row without text is no document; of an empty text TRL makes a row with an end-of-text token.
      if (reader.find("text") == nullptr) return TextExample{};
      return TextExample{reader.text("text"), !format.drops_empty_text};
    case RowShape::kPromptCompletion:
      return reader.prompt_completion();
    case RowShape::kInstruction:
      return reader.instruction();
    case RowShape::kConversations:
      return reader.chat("conversations");
    case RowShape::kMessages:
      return reader.chat("messages");
    case RowShape::kTokens:
      return format.source_target ? reader.source_and_labels()
             : format.is_masked   ? reader.masked_tokens()
                                  : reader.tokens();
    case RowShape::kPromptText:
      return reader.prompt_text();
    case RowShape::kSegments:
    case RowShape::kSourceTarget:  // read above
      break;
  }
  return reader.segments();
}

}  // namespace tessera
