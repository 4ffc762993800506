#include "data/chat/messages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/expect_kind.h"
#include "data/chat/media.h"
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

// Takes a field out of an object; null if there is none.
Value take(Value::Object* fields, std::string_view name) {
  const auto field =
      std::find_if(fields->begin(), fields->end(), [name](const Value::Field& f) { return f.name == name; });
  if (field == fields->end()) return {};
  Value value = std::move(field->value);
  fields->erase(field);
  return value;
}

// {"name": ..., "arguments": ...} or a list of them to OpenAI's tool_calls.
Value wrap_calls(Value calls) {
  if (calls.list() == nullptr) calls = Value::List{std::move(calls)};
  for (Value& call : *calls.list()) call = Value::Object{{"type", "function"}, {"function", std::move(call)}};
  return calls;
}

// Gives a turn of ShareGPT's data the fields of OpenAI; further ones stay.
void read_turn(Value* turn, const std::string& where) {
  const std::string from = *turn->find("from")->string();
  const auto role =
      std::find_if(std::begin(kRoles), std::end(kRoles), [from](const Role& r) { return r.from == from; });
  if (role == std::end(kRoles)) {
    fail(ExitCode::kBadData, "{}: expected 'from' to be human, gpt, system, tool, ..., found '{}'", where,
         printable(from, 40));
  }
  expect_string(turn->find("value"), where, "a string 'value'");
  Value::Object message;
  for (Value::Field& field : *turn->object()) {
    if (field.name == "from") {
      message.push_back({"role", role->role == "function_call" ? "assistant" : role->role});
    } else if (field.name != "value") {
      message.push_back(std::move(field));
    } else if (role->role == "function_call") {
      message.push_back({"tool_calls", wrap_calls(parse_value(*field.value.string(), where))});
    } else {
      message.push_back({"content", std::move(field.value)});
    }
  }
  *turn = std::move(message);
}

// OpenAI's fields of messages before there were tools.
void update_functions(Value* message) {
  if (Value call = take(message->object(), "function_call"); call.object() != nullptr)
    message->object()->push_back({"tool_calls", wrap_calls(std::move(call))});
  if (std::string& role = *message->find("role")->string(); role == "function") role = "tool";
}

// Like Transformers, gives a model's thoughts the names that templates read (_alias_reasoning_fields in
// transformers/utils/chat_template_utils.py).
void name_reasoning(Value* message) {
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning == nullptr) reasoning = message->find(name);
  }
  if (reasoning == nullptr) return;
  const Value thoughts = *reasoning;
  Value::Object& fields = *message->object();
  if (message->find("thinking") == nullptr) fields.insert(fields.begin(), {"thinking", thoughts});
  if (Value* known = message->find("reasoning_content")) {
    *known = thoughts;
  } else {
    fields.push_back({"reasoning_content", thoughts});
  }
}

Value read_message(Value item, const std::string& where) {
  expect_object(&item, where);
  if (item.find("role") == nullptr && item.find_string("from") != nullptr) read_turn(&item, where);
  expect_string(item.find("role"), where, "a string 'role' (or 'from')");
  // Transformers' _normalize_chat_messages does the same: templates print a null as "None".
  std::erase_if(*item.object(), [](const Value::Field& field) { return field.value.is_null(); });
  update_functions(&item);
  check_message_fields(&item, where);
  name_reasoning(&item);
  if (const std::string* calls = item.find_string("tool_calls")) {
    Value parsed = parse_value(*calls, where);
    *item.find("tool_calls") = std::move(parsed);
  }
  if (Value* content = item.find("content")) {
    if (content->list() != nullptr) *content = join_text_parts(*content->list(), where);
    expect_string(content, where, "'content' to be a string or a list of text parts");
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

}  // namespace

bool is_target_mark(std::string_view field) {
  constexpr std::string_view kMarks[] = {"loss", "loss_mask", "loss_scale", "train", "training", "trainable"};
  return std::find(std::begin(kMarks), std::end(kMarks), field) != std::end(kMarks);
}

void check_message_media(const Value& message, const std::string& where) {
  for (const Value::Field& field : *message.object()) {
    const bool is_text = field.value.string() != nullptr;
    const bool is_empty = field.value.is_null() || (is_text && field.value.string()->empty()) ||
                          (field.value.list() != nullptr && field.value.list()->empty());
    const bool is_media_field =
        media_name(field.name) != MediaName::kNone && field.value.boolean() == nullptr;
    if ((is_media_field && !is_empty) || is_media(field.name, field.value)) {
      fail(ExitCode::kBadData, "{}: expected text, found '{}': images, video and audio are not supported",
           where, field.name);
    }
    if (field.name == "refusal" && !is_empty) {
      fail(ExitCode::kBadData, "{}: templates do not read 'refusal': expected the answer as 'content'",
           where);
    }
  }
}

void check_message_fields(Value* message, const std::string& where) {
  check_message_media(*message, where);
  for (const Value::Field& field : *message->object()) {
    if (!field.value.is_null() && is_target_mark(field.name)) {
      fail(ExitCode::kBadData,
           "{}: '{}' is not read: a 'weight' of 0 or 1 says whether a message is a target", where,
           field.name);
    }
  }
  if (Value* weight = message->find("weight"); weight != nullptr && !weight->is_null()) {
    const double found = weight->integer() != nullptr   ? static_cast<double>(*weight->integer())
                         : weight->number() != nullptr  ? *weight->number()
                         : weight->boolean() != nullptr ? static_cast<double>(*weight->boolean())
                                                        : -1;
    if (found != 0 && found != 1)
      fail(ExitCode::kBadData, "{}: expected a 'weight' of 0 or 1, found {}", where,
           found == -1 ? weight->kind_name() : fmt::format("{}", found));
    *weight = static_cast<int64_t>(found);
  }
}

void add_message(std::string role, std::string content, Value::List* messages) {
  messages->push_back(Value::Object{{"role", std::move(role)}, {"content", std::move(content)}});
}

void append_messages(Value items, const MessageTags& tags, const std::string& where, Value::List* messages) {
  // Tables that cannot hold lists have JSON in a string.
  if (const std::string* json = items.string()) items = parse_value(*json, where);
  int64_t index = 0;
  for (Value& item : expect_list(&items, where)) {
    apply_tags(tags, &item);
    messages->push_back(read_message(std::move(item), fmt::format("{}[{}]", where, index++)));
  }
}

std::string join_text_parts(Value::List& parts, const std::string& where) {
  std::string text;
  for (Value& part : parts) {
    const std::string* type = part.find_string("type");
    const std::string* content = part.string() != nullptr ? part.string() : part.find_string("text");
    if (content == nullptr || (type != nullptr && !type->ends_with("text"))) {
      fail(ExitCode::kBadData, "{}: expected parts of text, found {}", where,
           type != nullptr ? "one of type '" + printable(*type, 40) + "'" : part.kind_name());
    }
    text += *content;
  }
  return text;
}

Value tool_calls_of(const std::string& json, const std::string& where) {
  return wrap_calls(parse_value(json, where));
}

void append_history(Value pairs, const std::string& where, Value::List* messages) {
  for (Value& pair : expect_list(&pairs, where)) {
    Value::List& texts = expect_list(&pair, where);
    if (texts.size() != 2 || texts[0].string() == nullptr || texts[1].string() == nullptr)
      fail(ExitCode::kBadData, "{}: expected pairs of strings, a question and its answer", where);
    add_message("user", std::move(*texts[0].string()), messages);
    add_message("assistant", std::move(*texts[1].string()), messages);
  }
}

bool parse_tool_arguments(Value::List* messages) {
  bool found = false;
  for (Value& message : *messages) {
    Value::List* calls = message.find_list("tool_calls");
    if (calls == nullptr) continue;
    for (Value& call : *calls) {
      Value* function = call.find("function");
      Value* arguments = (function == nullptr ? &call : function)->find("arguments");
      if (arguments == nullptr || arguments->string() == nullptr) continue;
      found = true;
      const std::string text = *arguments->string();
      // Some programs write nothing for no arguments.
      Value parsed = text.empty() ? Value(Value::Object()) : parse_value(text, "'arguments' of a tool call");
      expect_object(&parsed, "'arguments' of a tool call", "an object, or JSON of one");
      *arguments = std::move(parsed);
    }
  }
  return found;
}

namespace {

void drop_null_fields(Value* object) {
  if (object == nullptr || object->object() == nullptr) return;
  std::erase_if(*object->object(), [](const Value::Field& field) { return field.value.is_null(); });
}

// In JSON Schema only these may be null.
void drop_nulls_of_schema(Value* value) {
  if (Value::List* items = value->list()) {
    for (Value& item : *items) drop_nulls_of_schema(&item);
  }
  if (value->object() == nullptr) return;
  std::erase_if(*value->object(), [](const Value::Field& field) {
    return field.value.is_null() && field.name != "default" && field.name != "const";
  });
  for (Value::Field& field : *value->object()) drop_nulls_of_schema(&field.value);
}

// The parameters of the function `name`; null if no tool has that name or the tool does not list them.
const Value* parameters_of(const Value& tools, const Value* name) {
  if (tools.list() == nullptr || name == nullptr) return nullptr;
  for (const Value& tool : *tools.list()) {
    const Value* function = tool.find("function");
    if (function == nullptr) function = &tool;
    const Value* found = function->find("name");
    const Value* parameters = function->find("parameters");
    if (found != nullptr && *found == *name && parameters != nullptr) return parameters->find("properties");
  }
  return nullptr;
}

}  // namespace

void drop_filled_nulls(Value* tools, Value::List* messages) {
  drop_nulls_of_schema(tools);
  for (Value& message : *messages) {
    Value::List* calls = message.find_list("tool_calls");
    if (calls == nullptr) continue;
    for (Value& call : *calls) {
      drop_null_fields(&call);
      Value* function = call.find("function");
      drop_null_fields(function);
      if (function == nullptr) function = &call;
      Value* arguments = function->find("arguments");
      const Value* known = parameters_of(*tools, function->find("name"));
      if (arguments == nullptr || arguments->object() == nullptr || known == nullptr) continue;
      std::erase_if(*arguments->object(), [known](const Value::Field& argument) {
        return argument.value.is_null() && known->find(argument.name) == nullptr;
      });
    }
  }
}

Value read_tools(Value tools, const std::string& where) {
  if (tools.string() != nullptr) {
    const std::string text = std::move(*tools.string());
    if (text.empty()) return {};
    tools = parse_value(text, where);
  }
  if (expect_list(&tools, where).empty()) return {};
  return tools;
}

void wrap_functions(Value* tools) {
  if (tools->list() == nullptr) return;
  for (Value& tool : *tools->list()) {
    const std::string* type = tool.find_string("type");
    const bool is_wrapped = type != nullptr && *type == "function";
    if (tool.object() != nullptr && !is_wrapped)
      tool = Value::Object{{"type", "function"}, {"function", std::move(tool)}};
  }
}

}  // namespace tessera
