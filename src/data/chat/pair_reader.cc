#include "data/chat/pair_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "data/chat/expect_kind.h"
#include "data/chat/messages.h"
#include "data/chat/row_columns.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<PairRules::Targets, const char*>, 3> kPairTargets = {{
    {PairRules::Targets::kAnswers, "answers"},
    {PairRules::Targets::kLastAnswer, "last_answer"},
    {PairRules::Targets::kEverything, "everything"},
}};

struct Stretch {
  size_t begin = 0;  // with the words around it
  size_t end = 0;
  std::string inside;
};

// The first text between two words.
std::optional<Stretch> find_between(const std::string& text, std::string_view open, std::string_view close) {
  const size_t begin = text.find(open);
  if (begin == std::string::npos) return std::nullopt;
  const size_t inside = begin + open.size();
  const size_t end = text.find(close, inside);
  if (end == std::string::npos) return std::nullopt;
  return Stretch{begin, end + close.size(), text.substr(inside, end - inside)};
}

// A call, or a list of calls, as JSON, perhaps between <tool_call> and </tool_call> or after a thought.
Value call_message(std::string text, const std::string& where) {
  std::string calls = text;
  std::string thought;
  if (const auto call = find_between(text, "<tool_call>", "</tool_call>")) {
    calls = call->inside;
    thought = text.erase(call->begin, call->end - call->begin);
  } else if (const auto thinking = find_between(text, "<think>\n", "\n</think>\n\n")) {
    thought = text.substr(thinking->begin, thinking->end - thinking->begin);
    calls = text.erase(thinking->begin, thinking->end - thinking->begin);
  }
  Value message = Value::Object{{"role", "assistant"}};
  if (!thought.empty()) message.object()->push_back({"content", std::move(thought)});
  message.object()->push_back({"tool_calls", tool_calls_of(calls, where)});
  return message;
}

class PairReader {
 public:
  PairReader(Value row, const RowFormat& format, const std::string& where)
      : row_(std::move(row)), format_(format), where_(where) {}

  ChatExample instruction() {
    ChatExample example;
    expect_column("instruction");
    start(text_of("system"), &example);
    if (Value* history = find("history"); history != nullptr && history->list() != nullptr) {
      append_history(std::move(*history), place_of("history"), &example.messages);
    } else if (history != nullptr && *history != Value("")) {
      fail(ExitCode::kBadData, "{}: expected a list of pairs, found {}, which LLaMA-Factory reads over",
           place_of("history"), history->kind_name());
    }
    std::string question = text_of("instruction");
    if (const std::string input = text_of("input"); !input.empty())
      question += (question.empty() ? "" : "\n") + input;
    add_message("user", std::move(question), &example.messages);
    Value* answer = find("output");
    if (answer == nullptr || answer->string() == nullptr) {
      leave_out(fmt::format("{}: expected a string as the answer, found {}", place_of("output"),
                            answer == nullptr ? "none" : answer->kind_name()));
    }
    add_message("assistant", std::move(*answer->string()), &example.messages);
    return finish(std::move(example));
  }

  ChatExample conversation(std::string_view field) {
    Value* items = find(field);
    if (const std::string* json = items == nullptr ? nullptr : items->string())
      *items = parse_value(*json, place_of(field));
    expect_column(field);
    place_ = place_of(field);
    Value::List& messages = expect_list(items, place_, "a list of messages");
    Value::List turns;
    std::string system;
    bool has_system = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      Value& item = messages[i];
      const std::string role = role_of(item, i);
      if (role == "system" && i == 0) {
        has_system = true;
        system = content_of(&item, i);
      } else {
        add_turn(role, &item, i, &turns);
      }
    }
    ChatExample example;
    start(has_system ? std::move(system) : text_of("system"), &example);
    check_order(turns);
    append_messages(std::move(turns), {}, place_, &example.messages);
    return finish(std::move(example));
  }

 private:
  std::string_view column_of(std::string_view field) const {
    for (const auto& [name, column] : format_.columns) {
      if (name == field) return column;
    }
    return {};
  }
  // Null if no column has this name, the row does not have it or its value is null.
  Value* find(std::string_view field) {
    const std::string_view column = column_of(field);
    Value* value = column.empty() ? nullptr : row_.find(column);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string place_of(std::string_view field) const {
    const std::string_view column = column_of(field);
    return fmt::format("{}: column '{}'", where_, printable(column.empty() ? field : column));
  }
  // LLaMA-Factory would train on an empty question.
  void expect_column(std::string_view field) const {
    if (const std::string_view column = column_of(field); !column.empty() && row_.find(column) == nullptr)
      fail(ExitCode::kBadData, "{}: missing, found the columns {}", place_of(field), columns_text(row_));
  }
  std::string text_of(std::string_view field) {
    Value* value = find(field);
    if (value == nullptr) return {};
    return std::move(expect_string(value, place_of(field)));
  }
  [[noreturn]] static void leave_out(const std::string& why) { throw LeftOutRow(ExitCode::kBadData, why); }

  void start(std::string system, ChatExample* example) {
    if (Value* tools = find("tools")) example->tools = read_tools(std::move(*tools), place_of("tools"));
    wrap_functions(&example->tools);
    const std::optional<std::string>& otherwise = format_.pairs->default_system;
    if (system.empty()) system = otherwise.value_or("");
    if (!system.empty() || otherwise) add_message("system", std::move(system), &example->messages);
  }

  ChatExample finish(ChatExample example) const {
    const PairRules::Targets targets = format_.pairs->targets;
    example.has_answers = targets != PairRules::Targets::kEverything;
    if (targets == PairRules::Targets::kLastAnswer)
      example.num_prompt_messages = std::ssize(example.messages) - 1;
    return example;
  }

  template <typename AnyValue>
  auto& text_in(AnyValue& item, const std::string& field, size_t index) const {
    return expect_string(item.find(field), fmt::format("{}[{}]", place_, index),
                         fmt::format("a string '{}'", printable(field)));
  }

  // OpenAI's role, or function_call; "" for one that no tag names.
  std::string role_of(const Value& item, size_t index) const {
    const std::string& role = text_in(item, format_.tags.role, index);
    for (const auto& [from, name] : format_.tags.roles) {
      if (from == role) return name;
    }
    leave_out(fmt::format("{}[{}]: '{}' is the role of no tag", place_, index, printable(role, 40)));
  }

  std::string content_of(Value* item, size_t index) const {
    return std::move(text_in(*item, format_.tags.content, index));
  }

  void add_turn(const std::string& role, Value* item, size_t index, Value::List* turns) const {
    const std::string where = fmt::format("{}[{}]", place_, index);
    check_other_fields(item, where);
    Value::List* calls = item->find_list("tool_calls");
    const bool is_answer = role == "assistant" || role == "function_call";
    const bool has_calls =
        is_answer && format_.shape == RowShape::kMessages && calls != nullptr && !calls->empty();
    if (has_calls) {
      turns->push_back(Value::Object{{"role", "assistant"}, {"tool_calls", std::move(*calls)}});
    } else if (role == "function_call") {
      turns->push_back(call_message(content_of(item, index), where));
    } else {
      turns->push_back(Value::Object{{"role", role}, {"content", content_of(item, index)}});
    }
  }

  // LLaMA-Factory reads over what is neither role nor content.
  void check_other_fields(Value* item, const std::string& where) const {
    check_message_fields(item, where);
    for (const Value::Field& field : *item->object()) {
      const bool is_read = field.name == format_.tags.role || field.name == format_.tags.content ||
                           (field.name == "tool_calls" && format_.shape == RowShape::kMessages);
      const bool is_nothing =
          field.value.is_null() || field.value == Value("") || field.value == Value(Value::List());
      if (is_read || is_nothing || (field.name == "weight" && field.value == Value(int64_t{1}))) continue;
      if (field.name == "weight" || field.name == "tool_calls") {
        fail(ExitCode::kBadData, "{}: '{}' is not read, as in LLaMA-Factory: {}", where, field.name,
             field.name == "weight" ? "leave such messages out"
                                    : "set formatting openai in dataset_info.json");
      }
      log_warning_once(fmt::format("column '{}': the field '{}' of messages is not read, as in LLaMA-Factory",
                                   printable(column_of_messages(), 40), printable(field.name, 40)));
    }
  }
  std::string_view column_of_messages() const {
    return column_of(format_.shape == RowShape::kMessages ? "messages" : "conversations");
  }

  // A question of the user or a tool, an answer, and so on. Several tools may answer one after the other
  // among OpenAI's messages.
  void check_order(const Value::List& turns) const {
    bool wants_answer = false;
    const std::string* last = nullptr;
    for (const Value& turn : turns) {
      const std::string& role = *turn.find("role")->string();
      const bool continues =
          format_.shape == RowShape::kMessages && role == "tool" && last != nullptr && *last == "tool";
      last = &role;
      if (continues) continue;
      if (role == "system" || (role == "assistant") != wants_answer) {
        leave_out(
            fmt::format("{}: expected questions (of a user or tool) and answers in turn, found '{}' for {}",
                        place_, role, wants_answer ? "an answer" : "a question"));
      }
      wants_answer = !wants_answer;
    }
    if (turns.empty() || wants_answer)
      leave_out(fmt::format("{}: expected an answer as the last message", place_));
  }

  Value row_;
  const RowFormat& format_;
  const std::string& where_;
  std::string place_;  // of the messages
};

}  // namespace

const char* pair_targets_name(PairRules::Targets targets) {
  return std::find_if(kPairTargets.begin(), kPairTargets.end(),
                      [targets](const auto& named) { return named.first == targets; })
      ->second;
}

std::optional<PairRules::Targets> pair_targets_by_name(std::string_view name) {
  for (const auto& [targets, its_name] : kPairTargets) {
    if (its_name == name) return targets;
  }
  return std::nullopt;
}

std::string PairRules::text() const {
  const bool has_none = default_system && default_system->empty();
  const std::string system = default_system.value_or("");
  return fmt::format("{} {}:{}{}", pair_targets_name(targets), system.size(), system,
                     has_none ? " no system" : "");
}

ChatExample read_pairs(Value row, RowShape shape, const RowFormat& format, const std::string& where) {
  PairReader reader(std::move(row), format, where);
  if (shape == RowShape::kInstruction) return reader.instruction();
  return reader.conversation(shape == RowShape::kMessages ? "messages" : "conversations");
}

}  // namespace tessera
