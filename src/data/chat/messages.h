// Messages of conversations as chat templates expect them.
#pragma once

#include <string>
#include <string_view>

#include "base/value.h"
#include "data/chat/example.h"

namespace tessera {

// {"role": role, "content": content}
void add_message(std::string role, std::string content, Value::List* messages);

// Whether a message's field of this name says that it is a target or none (loss, train, ...), apart from
// weight.
bool is_target_mark(std::string_view field);

// Error(kBadData) starting with `where`: a field of images, video, audio, or a refusal.
void check_message_media(const Value& message, const std::string& where);

// Also checks fields that mark targets other than `weight`, and makes `weight` an integer, 0 or 1.
void check_message_fields(Value* message, const std::string& where);

// Appends the items of a list, or of JSON text with one: OpenAI's (role, content, tool_calls, ...) as they
// are, ShareGPT's (from, value) with the roles of OpenAI, or those with the fields and roles of `tags`.
// Content that is a list of text parts becomes one string. Like Transformers, drops fields that are null and
// gives thoughts their names (reasoning_content, thinking). OpenAI's function_call and the role "function"
// become tool_calls and "tool". Error(kBadData) starting with `where` and the item's index: not a list of
// objects, no role, an unknown `from`, a part that is not text, a weight that is neither 0 nor 1, a field of
// images, audio, a refusal or another mark of a target.
void append_messages(Value items, const MessageTags& tags, const std::string& where, Value::List* messages);

// The text of a list of parts: strings and {"type": "text", "text": ...}. Moves out of the parts.
// Error(kBadData) starting with `where` for other parts.
std::string join_text_parts(Value::List& parts, const std::string& where);

// OpenAI's tool_calls of {"name": ..., "arguments": ...}, or of a list of them, as JSON.
Value tool_calls_of(const std::string& json, const std::string& where);

// Appends Alpaca's history, a list of pairs of a user's and an assistant's message.
void append_history(Value pairs, const std::string& where, Value::List* messages);

// Parses the arguments of tool calls that are JSON in a string, as OpenAI has them; false if there are none.
// Error(kBadData): not JSON of an object.
bool parse_tool_arguments(Value::List* messages);

// Tools as a list; a string with the JSON of one is parsed.
Value read_tools(Value tools, const std::string& where);

// Drops fields of tools and tool calls that are null since a table that the rows came from has the fields of
// all rows in every row: all that JSON Schema does not let be null, and arguments that the tool does not
// have.
void drop_filled_nulls(Value* tools, Value::List* messages);

// Puts {"type": "function", "function": ...} around tools that are bare functions, as LLaMA-Factory does.
void wrap_functions(Value* tools);

}  // namespace tessera
