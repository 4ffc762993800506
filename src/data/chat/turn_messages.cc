#include "data/chat/turn_messages.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/chat/expect_kind.h"
#include "data/chat/messages.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

// Axolotl's, where the data set names none.
const NamePairs& default_roles() {
  static const NamePairs kDefault = {{"human", "user"},    {"user", "user"},     {"assistant", "assistant"},
                                     {"gpt", "assistant"}, {"system", "system"}, {"tool", "tool"}};
  return kDefault;
}

void drop_all_nulls(Value* value) {
  if (Value::List* items = value->list()) {
    for (Value& item : *items) drop_all_nulls(&item);
  }
  Value::Object* fields = value->object();
  if (fields == nullptr) return;
  std::erase_if(*fields, [](const Value::Field& field) { return field.value.is_null(); });
  for (Value::Field& field : *fields) drop_all_nulls(&field.value);
}

std::string field_names(const Value& object) {
  std::vector<std::string> names;
  for (const Value::Field& field : *object.object()) names.push_back(printable(field.name, 40));
  return names.empty() ? "no fields" : fmt::format("the fields {}", fmt::join(names, ", "));
}

// A value in which text stands for its JSON.
void parse_if_text(Value* value, const std::string& where) {
  if (value == nullptr || value->string() == nullptr) return;
  const std::string json = std::move(*value->string());
  *value = parse_value(json, where);
}

Value::List& list_in(Value* value, const std::string& where) {
  parse_if_text(value, where);
  return expect_list(value, where);
}

void set_field(Value::Object* fields, std::string_view name, Value value) {
  for (Value::Field& field : *fields) {
    if (field.name != name) continue;
    field.value = std::move(value);
    return;
  }
  fields->push_back({std::string(name), std::move(value)});
}

// Fields under the names of `mapping` (ours, theirs); others keep theirs.
Value mapped_message(const Value& item, const NamePairs& mapping) {
  Value::Object message;
  for (const auto& [ours, theirs] : mapping) {
    if (const Value* value = item.find(theirs)) set_field(&message, ours, *value);
  }
  for (const Value::Field& field : *item.object()) {
    const bool is_mapped = std::any_of(mapping.begin(), mapping.end(),
                                       [&](const auto& names) { return names.second == field.name; });
    if (!is_mapped) set_field(&message, field.name, field.value);
  }
  return message;
}

bool is_on(const Value& value, const std::string& where) {
  if (value.boolean() != nullptr) return *value.boolean();
  if (value.integer() != nullptr) return *value.integer() != 0;
  if (value.number() != nullptr) return *value.number() != 0;
  fail_kind(&value, where, "true or false");
}

// The targets that the parts of a content mark: `train`, or a `weight`. nullopt if they mark none.
std::optional<std::vector<PartTarget>> parts_of(const Value::List& content, const std::string& where) {
  std::vector<PartTarget> parts;
  bool has_marks = false;
  int64_t at = 0;
  for (const Value& part : content) {
    const Value* train = part.find("train");
    const Value* weight = part.find("weight");
    const Value* mark = train != nullptr ? train : weight;
    has_marks = has_marks || mark != nullptr;
    const std::string* text = part.string() != nullptr ? part.string() : part.find_string("text");
    if (text == nullptr || text->empty()) continue;
    const int64_t length = count_characters(*text);
    parts.push_back({at, at + length - 1, mark == nullptr || is_on(*mark, where)});
    at += length;
  }
  return has_marks ? std::optional(parts) : std::nullopt;
}

// Text parts in one string.
void join_content(Value* message, const std::string& where, MessageMarks* marks) {
  Value* content = message->find("content");
  if (content == nullptr) return;
  if (Value::List* parts = content->list()) {
    if (auto targets = parts_of(*parts, where)) marks->parts = std::move(targets);
    *content = join_text_parts(*parts, where);
  }
  expect_string(content, where, "the content to be a string or a list of text parts");
}

void join_thoughts(const std::string& field, Value* message, const std::string& where) {
  Value* thoughts = message->find(field);
  if (thoughts == nullptr || thoughts->list() == nullptr) return;
  if (parts_of(*thoughts->list(), where)) {
    fail(ExitCode::kBadData, "{}: marks on parts of '{}' are not supported, those of the content are", where,
         printable(field));
  }
  *thoughts = join_text_parts(*thoughts->list(), where);
}

// The target marks of the item and of the parts of its content.
MessageMarks marks_of(const Value& item, const TurnTargets& turns, const std::string& where) {
  MessageMarks marks;
  const Value* training = turns.training_field.empty() ? nullptr : item.find(turns.training_field);
  if (training != nullptr) marks.training = is_on(*training, where + "." + turns.training_field);
  const Value* details = turns.detail_field.empty() ? nullptr : item.find(turns.detail_field);
  if (details == nullptr) return marks;
  const std::string place = fmt::format("{}.{}", where, printable(turns.detail_field));
  marks.parts.emplace();
  for (const Value& detail : expect_list(details, place)) {
    const Value* begin = detail.find("begin_offset");
    const Value* end = detail.find("end_offset");
    const Value* train = detail.find("train");
    if (begin == nullptr || begin->integer() == nullptr || end == nullptr || end->integer() == nullptr ||
        train == nullptr) {
      fail(ExitCode::kBadData, "{}: expected objects with begin_offset, end_offset and train", place);
    }
    marks.parts->push_back({*begin->integer(), *end->integer(), is_on(*train, place)});
  }
  return marks;
}

std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// The text between `begin` and `end`, if both occur; *rest becomes the text after it.
std::optional<std::string> text_between(const std::string& text, std::string_view begin, std::string_view end,
                                        std::string* rest) {
  const size_t from = text.find(begin);
  const size_t to = text.find(end);
  if (from == std::string::npos || to == std::string::npos) return std::nullopt;
  if (rest != nullptr) *rest = text.substr(to + end.size());
  const size_t first = from + begin.size();
  return std::string(
      strip(to > first ? std::string_view(text).substr(first, to - first) : std::string_view()));
}

// Moves the thoughts at the start of an answer into a field of their own.
void split_thoughts(const std::string& field, Value* message) {
  std::string* content = message->find_string("content");
  if (*message->find("role") != Value("assistant") || content == nullptr) return;
  static constexpr std::pair<std::string_view, std::string_view> kThoughts[] = {
      {"<think>", "</think>"},
      {"<reasoning>", "</reasoning>"},
      {"<|begin_of_thought|>", "<|end_of_thought|>"}};
  for (const auto& [begin, end] : kThoughts) {
    std::string rest;
    const std::optional<std::string> thoughts = text_between(*content, begin, end, &rest);
    if (!thoughts) continue;
    rest.erase(0, std::min(rest.find_first_not_of(" \t\n\r\f\v"), rest.size()));
    const std::optional<std::string> solution =
        text_between(rest, "<|begin_of_solution|>", "<|end_of_solution|>", nullptr);
    *content = solution.value_or(rest);
    set_field(message->object(), field, Value(*thoughts));
    return;
  }
}

void parse_calls(Value* message, const std::string& where) {
  Value::List* calls = message->find_list("tool_calls");
  if (calls == nullptr) return;
  for (Value& call : *calls) {
    if (Value* function = call.find("function"))
      parse_if_text(function->find("arguments"), where + ".tool_calls: arguments");
  }
}

// Axolotl reads over marks of what is a target that the data set does not name.
void warn_of_marks(const Value& item, const TurnTargets& turns) {
  for (const Value::Field& field : *item.object()) {
    const bool is_mark = is_target_mark(field.name) || field.name == "weight";
    if (!is_mark || field.name == turns.training_field || field.name == turns.detail_field) continue;
    log_warning_once(
        fmt::format("messages have '{0}', which does not say what is a target, as in Axolotl: set "
                    "message_field_training: {0}",
                    field.name));
  }
}

Value read_turn(const Value& item, const RowFormat& format, const std::string& where, MessageMarks* marks) {
  const MessageTags& tags = format.tags;
  expect_object(&item, where);
  check_message_media(item, where);
  warn_of_marks(item, *format.turns);
  Value message = mapped_message(item, tags.properties);
  Value* role = message.find("role");
  if (role == nullptr || role->string() == nullptr) {
    fail(ExitCode::kBadData, "{}: expected a string '{}', the role; found {}", where,
         tags.properties.empty() ? "role" : printable(tags.properties.front().second), field_names(item));
  }
  const NamePairs& roles = tags.roles.empty() ? default_roles() : tags.roles;
  for (const auto& [theirs, ours] : roles) {
    if (*role->string() != theirs) continue;
    *role = Value(ours);
    break;
  }
  const std::string& thinking_field = format.turns->thinking_field;
  if (format.turns->splits_thoughts) split_thoughts(thinking_field, &message);
  *marks = marks_of(item, *format.turns, where);
  join_content(&message, where, marks);
  join_thoughts(thinking_field, &message, where);
  parse_calls(&message, where);
  return message;
}

void read_functions(Value* tools, const std::string& where) {
  for (Value& tool : list_in(tools, where)) {
    if (Value* function = tool.find("function"))
      parse_if_text(function->find("parameters"), where + ": parameters");
  }
}

}  // namespace

ChatExample read_turns(Value row, const RowFormat& format, const std::string& where) {
  drop_all_nulls(&row);
  Value* messages = row.find(column_of("messages", format));
  if (messages == nullptr) fail(ExitCode::kBadData, "{}: the messages are missing or null", where);
  ChatExample example;
  example.turns = &*format.turns;
  if (!format.variables.empty())
    example.more = std::move(*parse_value(format.variables, "chat_template_kwargs").object());
  int64_t index = 0;
  for (const Value& item : list_in(messages, where)) {
    const std::string place = fmt::format("{}: message {}", where, index++);
    example.marks.emplace_back();
    example.messages.push_back(read_turn(item, format, place, &example.marks.back()));
  }
  if (example.messages.empty()) fail(ExitCode::kBadData, "{}: expected messages, found an empty list", where);
  const auto is_system = [&] { return *example.messages.front().find("role") == Value("system"); };
  if (Value* system = row.find(column_of("system", format)); system != nullptr && !is_system()) {
    expect_string(system, where + ": column 'system'");
    example.messages.insert(example.messages.begin(),
                            Value::Object{{"role", "system"}, {"content", std::move(*system)}});
    example.marks.insert(example.marks.begin(), MessageMarks());
  }
  if (format.turns->drop_system && is_system()) {
    example.messages.erase(example.messages.begin());
    example.marks.erase(example.marks.begin());
  }
  if (Value* tools = row.find(column_of("tools", format))) {
    read_functions(tools, where + ": tools");
    if (!tools->list()->empty()) example.tools = std::move(*tools);
  }
  return example;
}

}  // namespace tessera
