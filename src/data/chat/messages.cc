#include "data/chat/messages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

struct Role {
  std::string_view from;  // in ShareGPT's data
  std::string_view role;
};

constexpr Role kRoles[] = {
    {"human", "user"},
    {"user", "user"},
    {"gpt", "assistant"},
    {"assistant", "assistant"},
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"bot", "assistant"},
    {"model", "assistant"},
    {"system", "system"},
    {"tool", "tool"},
    {"observation", "tool"},
    {"function_response", "tool"},
    {"function_call", "function_call"},
};

// The role as it is if it is none of those known.
std::string openai_role(const std::string& name, const MessageTags& tags) {
  for (const auto& [from, role] : tags.roles) {
    if (from == name) return role;
  }
  for (const Role& known : kRoles) {
    if (known.from == name && known.role != "function_call") return std::string(known.role);
  }
  return name;
}

void drop_nulls(Value::Object* fields) {
  std::erase_if(*fields,
                [](const Value::Field& field) { return field.value.is_null() && field.name != "content"; });
}

Value message_of_turn(std::string_view from, Value* value, const std::string& where) {
  const auto role =
      std::find_if(std::begin(kRoles), std::end(kRoles), [from](const Role& r) { return r.from == from; });
  if (role == std::end(kRoles)) {
    fail(ExitCode::kBadData, "{}: expected 'from' to be human, gpt, system, tool, ..., found '{}'", where,
         printable(from, 40));
  }
  if (value == nullptr || value->string() == nullptr) {
    fail(ExitCode::kBadData, "{}: expected a string 'value', found {}", where,
         value == nullptr ? "none" : value->kind_name());
  }
  if (role->role != "function_call")
    return Value::Object{{"role", std::string(role->role)}, {"content", std::move(*value)}};
  return Value::Object{{"role", "assistant"}, {"tool_calls", tool_calls_of(*value->string(), where)}};
}

Value read_message(Value item, const std::string& where) {
  if (item.object() == nullptr)
    fail(ExitCode::kBadData, "{}: expected an object, found {}", where, item.kind_name());
  const Value* role = item.find("role");
  const Value* from = item.find("from");
  if (role == nullptr && from != nullptr && from->string() != nullptr)
    return message_of_turn(*from->string(), item.find("value"), where);
  if (role == nullptr || role->string() == nullptr) {
    fail(ExitCode::kBadData, "{}: expected a string 'role' (or 'from'), found {}", where,
         role == nullptr ? "none" : role->kind_name());
  }
  drop_nulls(item.object());
  if (Value* content = item.find("content")) {
    if (content->list() != nullptr) {
      *content = join_text_parts(*content->list(), where);
    } else if (content->string() == nullptr && !content->is_null()) {
      fail(ExitCode::kBadData, "{}: expected 'content' to be a string or a list of text parts, found {}",
           where, content->kind_name());
    }
  }
  return item;
}

// Gives the fields of a message the names and roles of OpenAI.
void apply_tags(const MessageTags& tags, Value* message) {
  if (message->object() == nullptr) return;
  for (Value::Field& field : *message->object()) {
    if (!tags.content.empty() && field.name == tags.content) field.name = "content";
    if (tags.role.empty() || field.name != tags.role) continue;
    field.name = "role";
    if (std::string* role = field.value.string()) *role = openai_role(*role, tags);
  }
}

Value::List& list_of(Value& value, const std::string& where) {
  if (value.list() == nullptr)
    fail(ExitCode::kBadData, "{}: expected a list, found {}", where, value.kind_name());
  return *value.list();
}

}  // namespace

void add_message(std::string role, std::string content, Value::List* messages) {
  messages->push_back(Value::Object{{"role", std::move(role)}, {"content", std::move(content)}});
}

void append_messages(Value items, const MessageTags& tags, const std::string& where, Value::List* messages) {
  // Tables that cannot hold lists have JSON in a string.
  if (const std::string* json = items.string()) items = parse_value(*json, where);
  int64_t index = 0;
  for (Value& item : list_of(items, where)) {
    apply_tags(tags, &item);
    messages->push_back(read_message(std::move(item), fmt::format("{}[{}]", where, index++)));
  }
}

std::string join_text_parts(Value::List& parts, const std::string& where) {
  std::string text;
  for (Value& part : parts) {
    const Value* type = part.find("type");
    Value* content = part.find("text");
    if (part.string() != nullptr) {
      text += *part.string();
    } else if (content != nullptr && content->string() != nullptr &&
               (type == nullptr || type->string() == nullptr || type->string()->ends_with("text"))) {
      text += *content->string();
    } else {
      fail(ExitCode::kBadData, "{}: expected parts of text, found {}", where,
           type != nullptr && type->string() != nullptr
               ? "one of type '" + printable(*type->string(), 40) + "'"
               : part.kind_name());
    }
  }
  return text;
}

Value tool_calls_of(const std::string& json, const std::string& where) {
  Value calls = parse_value(json, where);
  if (calls.list() == nullptr) calls = Value::List{std::move(calls)};
  for (Value& call : *calls.list()) call = Value::Object{{"type", "function"}, {"function", std::move(call)}};
  return calls;
}

void append_history(Value pairs, const std::string& where, Value::List* messages) {
  for (Value& pair : list_of(pairs, where)) {
    Value::List& texts = list_of(pair, where);
    if (texts.size() != 2 || texts[0].string() == nullptr || texts[1].string() == nullptr)
      fail(ExitCode::kBadData, "{}: expected pairs of strings, a question and its answer", where);
    add_message("user", std::move(*texts[0].string()), messages);
    add_message("assistant", std::move(*texts[1].string()), messages);
  }
}

Value read_tools(Value tools, const std::string& where) {
  if (tools.string() != nullptr) {
    const std::string text = std::move(*tools.string());
    if (text.empty()) return {};
    tools = parse_value(text, where);
  }
  const Value::List& list = list_of(tools, where);
  if (list.empty()) return {};
  return tools;
}

void wrap_functions(Value* tools) {
  if (tools->list() == nullptr) return;
  for (Value& tool : *tools->list()) {
    const Value* type = tool.find("type");
    const bool is_wrapped = type != nullptr && type->string() != nullptr && *type->string() == "function";
    if (tool.object() != nullptr && !is_wrapped)
      tool = Value::Object{{"type", "function"}, {"function", std::move(tool)}};
  }
}

}  // namespace tessera
