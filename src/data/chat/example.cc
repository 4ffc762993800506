#include "data/chat/example.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/messages.h"
#include "data/chat/pair_reader.h"
#include "data/chat/turn_messages.h"

namespace tessera {
namespace {

struct ShapeInfo {
  RowShape shape;
  const char* name;
  std::vector<std::string_view> fields;  // that a row of this shape has
  bool is_recognised = true;
};

// In the order in which they are recognised: a row with messages often has further fields, such as a prompt.
const std::array<ShapeInfo, 8>& shapes() {
  static const std::array<ShapeInfo, 8> kShapes = {{
      {RowShape::kMessages, "messages", {"messages"}},
      {RowShape::kConversations, "sharegpt", {"conversations"}},
      {RowShape::kText, "text", {"text"}},
      {RowShape::kPromptCompletion, "prompt_completion", {"prompt", "completion"}},
      {RowShape::kInstruction, "alpaca", {"instruction", "output"}},
      {RowShape::kTokens, "tokens", {"input_ids"}},
      {RowShape::kPromptText, "prompt_text", {"instruction"}, false},
      {RowShape::kSegments, "segments", {"segments"}, false},
  }};
  return kShapes;
}

const ShapeInfo& info_of(RowShape shape) {
  return *std::find_if(shapes().begin(), shapes().end(),
                       [shape](const ShapeInfo& info) { return info.shape == shape; });
}

// The column that holds `field`.
std::string_view column_of(std::string_view field, const RowFormat& format) {
  for (const auto& [name, column] : format.columns) {
    if (name == field) return column;
  }
  return field == "text" ? std::string_view(format.text_column) : field;
}

std::string fields_of(const Value& row) {
  constexpr size_t kMaxShown = 8;
  std::vector<std::string> names;
  for (const Value::Field& field : *row.object()) {
    if (names.size() == kMaxShown) {
      names.emplace_back("...");
      break;
    }
    names.push_back(printable(field.name, 40));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

void check_object(const Value& row, const std::string& where) {
  if (row.object() == nullptr)
    fail(ExitCode::kBadData, "{}: expected an object, found {}", where, row.kind_name());
}

// Reads the fields of one row.
class RowReader {
 public:
  RowReader(Value row, const RowFormat& format, const std::string& where)
      : row_(std::move(row)), format_(format), where_(where) {}

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
    if (value->string() == nullptr)
      fail(ExitCode::kBadData, "{}: expected a string, found {}", where(field), value->kind_name());
    return std::move(*value->string());
  }
  std::string text_or_empty(std::string_view field) {
    return find(field) == nullptr ? std::string() : text(field);
  }

  // The messages under `field`, and what else a template is given.
  ChatExample chat(std::string_view field) {
    ChatExample example;
    add_variables(&example);
    if (field == "conversations") wrap_functions(&example.tools);
    const bool has_system = !example.messages.empty();
    add_messages(field, &example);
    // As LLaMA-Factory does: a system message of the conversation takes the place of the column's.
    if (has_system && example.messages.size() > 1 && *example.messages[1].find("role") == Value("system"))
      example.messages.erase(example.messages.begin());
    return example;
  }

  void add_variables(ChatExample* example) {
    if (Value* tools = find("tools")) example->tools = read_tools(std::move(*tools), where("tools"));
    if (Value* more = find("chat_template_kwargs")) {
      if (more->object() == nullptr)
        fail(ExitCode::kBadData, "{}: expected an object, found {}", where("chat_template_kwargs"),
             more->kind_name());
      example->more = std::move(*more->object());
    }
    // As LLaMA-Factory does, takes an empty text for none: tables have one where there is no system message.
    if (std::string system = text_or_empty("system"); !system.empty())
      add_message("system", std::move(system), &example->messages);
  }

  void add_messages(std::string_view field, ChatExample* example) {
    Value* value = find(field);
    if (value == nullptr) fail(ExitCode::kBadData, "{}: missing", where(field));
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
    return example;
  }

  // As LLaMA-Factory reads it: earlier turns in `history`, then instruction and input as the user's message.
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

  // As Axolotl: a column that is missing or null is an empty text, except the instruction.
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
      Value* text = item.find("text");
      const Value* label = item.find("label");
      if (text == nullptr || text->string() == nullptr || label == nullptr || label->boolean() == nullptr)
        fail(ExitCode::kBadData, "{}: expected objects with a boolean 'label' and a string 'text'",
             where("segments"));
      example.segments.push_back({std::move(*text->string()), *label->boolean()});
    }
    return example;
  }

  TokenExample tokens() {
    TokenExample example;
    example.input_ids = integers("input_ids");
    if (find("labels") != nullptr) {
      example.labels = integers("labels");
      check_same_length("labels", example.labels, example.input_ids);
    }
    if (find("attention_mask") != nullptr) {
      const std::vector<int32_t> mask = integers("attention_mask");
      check_same_length("attention_mask", mask, example.input_ids);
      drop_padding(mask, &example);
    }
    return example;
  }

 private:
  std::vector<int32_t> integers(std::string_view field) {
    const Value* value = find(field);
    if (value == nullptr || value->list() == nullptr) {
      fail(ExitCode::kBadData, "{}: expected a list of integers, found {}", where(field),
           value == nullptr ? "null" : value->kind_name());
    }
    std::vector<int32_t> numbers;
    numbers.reserve(value->list()->size());
    for (const Value& item : *value->list()) {
      if (item.integer() == nullptr || !std::in_range<int32_t>(*item.integer())) {
        fail(ExitCode::kBadData, "{}: value {}: expected an integer of 32 bits, found {}", where(field),
             numbers.size(), item.integer() == nullptr ? item.kind_name() : std::to_string(*item.integer()));
      }
      numbers.push_back(static_cast<int32_t>(*item.integer()));
    }
    return numbers;
  }

  void check_same_length(std::string_view field, const std::vector<int32_t>& found,
                         const std::vector<int32_t>& expected) const {
    if (found.size() != expected.size()) {
      fail(ExitCode::kBadData, "{}: expected {} as input_ids has, found {}", where(field),
           format_count(std::ssize(expected), "value"), found.size());
    }
  }

  // Keeps the values whose mask is 1, which are in one stretch.
  void drop_padding(const std::vector<int32_t>& mask, TokenExample* example) const {
    const auto begin = std::find(mask.begin(), mask.end(), 1);
    const auto end = std::find(begin, mask.end(), 0);
    if (!std::all_of(mask.begin(), begin, [](int32_t value) { return value == 0; }) ||
        !std::all_of(end, mask.end(), [](int32_t value) { return value == 0; })) {
      fail(ExitCode::kBadData, "{}: expected ones, with zeros before or after them for padding",
           where("attention_mask"));
    }
    const auto keep = [&](std::vector<int32_t>* values) {
      if (values->empty()) return;
      values->erase(values->begin() + (end - mask.begin()), values->end());
      values->erase(values->begin(), values->begin() + (begin - mask.begin()));
    };
    keep(&example->input_ids);
    keep(&example->labels);
  }

  Value row_;
  const RowFormat& format_;
  const std::string& where_;
};

bool has_shape(const Value& row, const ShapeInfo& info, const RowFormat& format) {
  return std::all_of(info.fields.begin(), info.fields.end(),
                     [&](std::string_view field) { return row.find(column_of(field, format)) != nullptr; });
}

}  // namespace

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
  // A text column that was named is what is wanted, whatever else there is.
  if (format.text_column != "text" && row.find(format.text_column) != nullptr) return RowShape::kText;
  for (const ShapeInfo& info : shapes()) {
    if (info.is_recognised && has_shape(row, info, format)) return info.shape;
  }
  return std::nullopt;
}

RowShape shape_of_first_row(const Value& row, const RowFormat& format, const std::string& where) {
  check_object(row, where);
  if (format.shape) return *format.shape;
  if (const std::optional<RowShape> shape = recognise_shape(row, format)) return *shape;
  if (format.text_column != "text") {
    fail(ExitCode::kBadData, "{}: no column '{}' (text_column); columns found: {}", where,
         printable(format.text_column), fields_of(row));
  }
  std::vector<std::string> known;
  for (const ShapeInfo& info : shapes()) {
    if (info.is_recognised) known.push_back(fmt::format("{}", fmt::join(info.fields, " and ")));
  }
  fail(
      ExitCode::kBadData,
      "{}: expected the columns {}; found {}: name the column of the text with --text_column, or others with "
      "--column_mapping",
      where, fmt::join(known, ", or "), fields_of(row));
}

Example read_example(Value row, RowShape shape, const RowFormat& format, const std::string& where) {
  check_object(row, where);
  if (format.pairs) return read_pairs(std::move(row), shape, format, where);
  if (!has_shape(row, info_of(shape), format)) {
    const std::optional<RowShape> other = recognise_shape(row, format);
    if (other && !format.shape) {
      fail(ExitCode::kBadData,
           "{}: found the shape {}, but earlier rows have the shape {}: a dataset has one shape of rows",
           where, row_shape_name(*other), row_shape_name(shape));
    }
    std::vector<std::string_view> columns;
    for (const std::string_view field : info_of(shape).fields) columns.push_back(column_of(field, format));
    fail(ExitCode::kBadData, "{}: expected the {} {} of the shape {}, found the columns {}", where,
         columns.size() == 1 ? "column" : "columns", fmt::join(columns, " and "), row_shape_name(shape),
         fields_of(row));
  }
  if (shape == RowShape::kMessages && format.turns) return read_turns(std::move(row), format, where);
  RowReader reader(std::move(row), format, where);
  switch (shape) {
    case RowShape::kText:
      return TextExample{reader.text("text")};
    case RowShape::kPromptCompletion:
      return reader.prompt_completion();
    case RowShape::kInstruction:
      return reader.instruction();
    case RowShape::kConversations:
      return reader.chat("conversations");
    case RowShape::kMessages:
      return reader.chat("messages");
    case RowShape::kTokens:
      return reader.tokens();
    case RowShape::kPromptText:
      return reader.prompt_text();
    case RowShape::kSegments:
      break;
  }
  return reader.segments();
}

}  // namespace tessera
