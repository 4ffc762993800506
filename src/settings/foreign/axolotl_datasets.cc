#include "settings/foreign/axolotl_datasets.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "data/chat/builtin_templates.h"
#include "data/chat/prompt_text.h"
#include "data/chat/turn_targets.h"
#include "data/sources/row_slice.h"
#include "settings/compat/compat_table.h"

namespace tessera {

std::span<const EmbeddedText> prompt_texts();  // settings/foreign/*.json

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class AxolotlDatasets {
 public:
  AxolotlDatasets(const AxolotlChats& chats, ForeignSettings* settings)
      : chats_(chats), settings_(*settings) {}

  std::optional<ConfigSetting> run() {
    translate_list("datasets", "dataset");
    translate_list("test_datasets", "eval_dataset");
    return template_;
  }

 private:
  // A list of objects; lists of texts are ours.
  void translate_list(const std::string& name, const std::string& flag) {
    const ConfigSetting* setting = settings_.find(name);
    const bool has_objects = setting != nullptr && setting->value.is_array() &&
                             std::any_of(setting->value.begin(), setting->value.end(),
                                         [](const json& item) { return item.is_object(); });
    if (!has_objects) return;
    const ConfigSetting taken = *settings_.take(name);
    list_ = name;
    line_ = taken.line;
    ForeignSources sources;
    for (const json& item : taken.value) add_source(item, &sources);
    settings_.set_sources(flag, std::move(sources), taken.line);
  }

  template <typename... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) const {
    settings_.fail_in(line_, "{}: {}", list_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Without what Axolotl takes for unset or what has no effect.
  json settled(const json& item) {
    if (!item.is_object()) fail_here("expected an object with 'path' in every entry");
    json kept = json::object();
    for (const auto& [key, value] : item.items()) {
      if (value.is_null()) continue;
      if (compat_table("axolotl").find("datasets." + key) == nullptr)
        fail_here("'{}' is no key of Axolotl's data sets: leave it out", printable(key));
      if (settle_axolotl_key(key, value, line_, list_, &settings_)) continue;
      check_kind(key, value);
      kept[key] = value;
    }
    return kept;
  }

  void check_kind(const std::string& key, const json& value) const {
    static constexpr std::string_view kOther[] = {
        "type",           "message_property_mappings", "roles",
        "roles_to_train", "drop_system_message",       "split_thinking",
        "data_files"};
    const bool is_other = std::find(std::begin(kOther), std::end(kOther), key) != std::end(kOther);
    if (!is_other && !value.is_string()) fail_here("{}: expected a text, found {}", key, found_text(value));
    if (key == "data_files" && !value.is_string()) list_of_texts("data_files", value);
  }

  void add_source(const json& entry, ForeignSources* sources) {
    const json item = settled(entry);
    json format = format_of(item);
    if (format["shape"] == "text") format["lines"] = true;  // as the library datasets reads text files
    for (const std::string& path : paths_of(item)) {
      check_type_of_file(path, text_of(item, "ds_type"));
      sources->paths.push_back(path);
      sources->formats[path] = format;
    }
  }

  // org/name[@revision][:config][/split], or local paths; followed by the slice of the split.
  std::vector<std::string> paths_of(const json& item) const {
    const std::string path = text_of(item, "path");
    if (path.empty()) fail_here("expected 'path' in every entry");
    std::string split = text_of(item, "split");
    std::string slice;
    if (const size_t bracket = split.find('['); bracket != std::string::npos) {
      slice = split.substr(bracket);
      split.resize(bracket);
    }
    if ((!slice.empty() && !parse_row_slice(slice)) || split.find_first_of("+(") != std::string::npos) {
      fail_here("split: expected a name with at most one slice, as train[10%:20%], found '{}'",
                printable(text_of(item, "split")));
    }
    std::vector<std::string> paths = texts_of(item, "data_files");
    std::error_code error;
    const bool is_local = fs::exists(path, error);
    if (!paths.empty() && !is_file_format(path) && !is_local)
      fail_here("data_files: files of a data set on the Hub cannot be chosen: name it without data_files");
    if (!paths.empty() || is_local) {
      if (paths.empty()) paths.push_back(path);
      const bool is_folder = fs::is_directory(paths[0], error);
      if ((!split.empty() && split != "train") || (is_folder && item.contains("name")))
        fail_here("{}: its only split is train: name the files of another one in data_files",
                  printable(paths[0], 200));
      if (!slice.empty() && paths.size() > 1)
        fail_here("split: a slice of several data_files: name one of them, or a folder, as path");
      for (std::string& file : paths) file += slice;
      return paths;
    }
    std::string name = path;
    if (const std::string revision = text_of(item, "revision"); !revision.empty()) name += "@" + revision;
    if (const std::string config = text_of(item, "name"); !config.empty()) name += ":" + config;
    if (split.empty() && list_ == "test_datasets") split = "test";
    if (!split.empty()) name += "/" + split;
    return {name + slice};
  }

  // Readers of files go by their names.
  void check_type_of_file(const std::string& path, const std::string& type) {
    std::error_code error;
    if (!fs::is_regular_file(path.substr(0, path.find('[')), error)) return;
    if (!type.empty() && !has_file_format(path.substr(0, path.find('[')), type))
      fail_here("ds_type: {}: a file is read as its name says: rename it to *.{}", printable(path, 200),
                printable(type == "text" ? "txt" : type));
  }

  json format_of(const json& item) {
    const auto type = item.find("type");
    if (type == item.end()) return {{"shape", "tokens"}};  // Axolotl takes tokenized rows without a type
    if (type->is_object()) return user_defined_format(*type);
    if (!type->is_string()) fail_here("type: expected a text or an object, found {}", found_text(*type));
    const std::string name = type->get<std::string>();
    if (name == "completion") {
      json format = {{"shape", "text"}, {"drops_empty", true}};
      if (const std::string field = text_of(item, "field"); !field.empty()) format["columns"]["text"] = field;
      return format;
    }
    if (name == "input_output") return {{"shape", "segments"}};
    if (name == "chat_template" || name == "sharegpt") return chat_format(item, name == "sharegpt");
    return prompt_format(item, name);
  }

  // A type that the file itself defines.
  json user_defined_format(const json& type) const {
    static constexpr std::string_view kFields[] = {
        "system_prompt", "system_format", "field_system", "field_instruction",
        "field_input",   "field_output",  "format",       "no_input_format"};
    for (const auto& [name, value] : type.items()) {
      if (std::ranges::find(kFields, name) == std::end(kFields))
        fail_here("type: '{}': expected one of {}", printable(name), fmt::join(kFields, ", "));
      if (!value.is_null() && !value.is_string())
        fail_here("type: {}: expected a text, found {}", name, found_text(value));
    }
    const auto text_or = [&](const std::string& name, const char* otherwise) {
      const auto found = type.find(name);
      return found == type.end() || found->is_null() ? std::string(otherwise) : found->get<std::string>();
    };
    json format = {{"shape", "prompt_text"}};
    for (const char* field : {"instruction", "input", "output", "system"}) {
      const std::string column = text_or(fmt::format("field_{}", field), field);
      // A renamed column must exist in the rows; columns with the usual names may be missing.
      if (column != field) format["columns"][field] = column;
    }
    json& prompt = format["prompt"];
    prompt["default_system"] = text_or("system_prompt", "");
    const auto set_format = [&](const char* name, const char* otherwise,
                                const std::vector<std::string_view>& fields) {
      const std::string text = text_or(name, otherwise);
      if (const std::string problem = format_problem(text, fields); !problem.empty())
        fail_here("type: {}: found {}", name, problem);
      prompt[name] = text;
    };
    set_format("system_format", "{system}", {"system"});
    set_format("format", "{instruction} {input} ", {"instruction", "input"});
    set_format("no_input_format", "{instruction} ", {"instruction"});
    return format;
  }

  // A named type, such as alpaca or alpaca_chat.load_qa, with the style that follows its colon or that
  // `conversation` names.
  json prompt_format(const json& item, const std::string& name) const {
    static const json kFormats = json::parse(text_named(prompt_texts(), "axolotl_prompts"));
    const size_t colon = name.find(':');
    const std::string base = name.substr(0, colon);
    const bool takes_conversation = name == "alpaca_chat";
    if (item.contains("conversation") && !takes_conversation)
      fail_here("conversation: it is the style of alpaca_chat; set chat_template for conversations");
    const std::string style = takes_conversation           ? text_of(item, "conversation")
                              : colon == std::string::npos ? ""
                                                           : name.substr(colon + 1);
    const auto format = kFormats.find(style.empty() ? base : fmt::format("{}:{}", base, style));
    const bool has_style_in_name = colon != std::string::npos && base == "alpaca_chat";
    if (format != kFormats.end() && !has_style_in_name) return *format;
    std::vector<std::string> types;
    for (const auto& [type, value] : kFormats.items()) {
      if (type.find(':') == std::string::npos) types.push_back(type);
    }
    fail_here(
        "the type {} is not supported: expected chat_template, completion, input_output, an object with "
        "format, or one of {} (alpaca with :chat, :chatml or :phi)",
        found_text(name), fmt::join(types, ", "));
  }

  json chat_format(const json& item, bool is_sharegpt) {
    if (item.contains("conversation"))
      fail_here("conversation: Axolotl has no such templates any more: set chat_template");
    if (is_sharegpt) {
      log_warning(
          "{}: the type sharegpt, which Axolotl has no longer, is read as chat_template with field_messages "
          "conversations and message_property_mappings {{role: from, content: value}}",
          list_);
    }
    json format = {{"shape", "messages"}};
    const auto set_column = [&](const char* ours, const char* theirs, const std::string& otherwise) {
      std::string column = text_of(item, theirs);
      if (column.empty()) column = otherwise;
      if (column != ours) format["columns"][ours] = column;
    };
    set_column("messages", "field_messages", is_sharegpt ? "conversations" : "messages");
    set_column("tools", "field_tools", "tools");
    format["tags"]["properties"] = properties_of(item, is_sharegpt);
    read_roles(item, &format["tags"]);
    format["turns"] = turns_of(item, format["tags"]);
    if (!chats_.variables.is_null()) format["variables"] = chats_.variables;
    note_template(item);
    return format;
  }

  json properties_of(const json& item, bool is_sharegpt) const {
    json properties = json::object();
    if (const auto mapping = item.find("message_property_mappings"); mapping != item.end()) {
      if (!mapping->is_object()) fail_here("message_property_mappings: expected an object");
      for (const auto& [ours, theirs] : mapping->items()) {
        if (!theirs.is_string())
          fail_here("message_property_mappings: {}: expected a text, found {}", printable(ours),
                    found_text(theirs));
        properties[ours] = theirs;
      }
    }
    for (const char* name : {"role", "content"}) {
      const std::string legacy = text_of(item, fmt::format("message_field_{}", name).c_str());
      if (!legacy.empty() && properties.contains(name) && properties[name] != legacy)
        fail_here("message_field_{} contradicts message_property_mappings", name);
      const std::string otherwise = !is_sharegpt ? name : name[0] == 'r' ? "from" : "value";
      if (!properties.contains(name)) properties[name] = legacy.empty() ? otherwise : legacy;
    }
    const std::string thoughts = thinking_field_of(item);
    const std::string field = text_of(item, "field_thinking");
    if (!field.empty() && !properties.contains(thoughts)) properties[thoughts] = field;
    return properties;
  }

  static std::string thinking_field_of(const json& item) {
    const std::string field = text_of(item, "template_thinking_key");
    return field.empty() ? "reasoning_content" : field;
  }

  void read_roles(const json& item, json* tags) const {
    const auto roles = item.find("roles");
    if (roles == item.end()) return;
    if (!roles->is_object()) fail_here("roles: expected an object, found {}", found_text(*roles));
    for (const auto& [role, names] : roles->items()) {
      for (const std::string& alias : list_of_texts("roles", names)) (*tags)["roles"][alias] = role;
    }
  }

  std::vector<std::string> list_of_texts(const char* name, const json& list) const {
    std::vector<std::string> texts;
    const bool is_list = list.is_array() && std::all_of(list.begin(), list.end(),
                                                        [](const json& item) { return item.is_string(); });
    if (!is_list) fail_here("{}: expected a list of texts, found {}", name, found_text(list));
    for (const json& text : list) texts.push_back(text.get<std::string>());
    return texts;
  }

  json turns_of(const json& item, const json& tags) const {
    static const json kDefaultRoles = {{"human", "user"}, {"gpt", "assistant"}};
    const json& roles = tags.contains("roles") ? tags["roles"] : kDefaultRoles;
    std::vector<std::string> trained = {"assistant"};
    if (const auto list = item.find("roles_to_train"); list != item.end())
      trained = list_of_texts("roles_to_train", *list);
    for (std::string& role : trained) {
      if (roles.contains(role)) role = roles[role].get<std::string>();
    }
    const std::string eos = end_targets_of(item, "train_on_eos", "turn");
    json turns = {{"roles", trained},
                  {"all_roles", chats_.train_on_inputs},
                  {"train_on_eos", eos},
                  {"train_on_eot", end_targets_of(item, "train_on_eot", eos)}};
    if (const std::string field = text_of(item, "message_field_training"); !field.empty())
      turns["training_field"] = field;
    if (!chats_.eot_tokens.is_null()) turns["eot_tokens"] = chats_.eot_tokens;
    if (is_on(item, "drop_system_message")) turns["drop_system"] = true;
    if (is_on(item, "split_thinking")) turns["splits_thoughts"] = true;
    if (item.contains("template_thinking_key")) turns["thinking_field"] = thinking_field_of(item);
    if (const std::string field = text_of(item, "message_field_training_detail"); !field.empty())
      turns["detail_field"] = field;
    if (trained.empty() && !chats_.train_on_inputs && !turns.contains("training_field") &&
        !turns.contains("detail_field") && eos == "none")
      fail_here("roles_to_train [] with train_on_eos none leaves nothing to train on");
    return turns;
  }

  bool is_on(const json& item, const char* name) const {
    const auto found = item.find(name);
    if (found == item.end()) return false;
    if (!found->is_boolean()) fail_here("{}: expected true or false, found {}", name, found_text(*found));
    return found->get<bool>();
  }

  std::string end_targets_of(const json& item, const char* name, const std::string& otherwise) const {
    const auto found = item.find(name);
    if (found == item.end()) return otherwise;
    if (!found->is_string() || !end_targets_by_name(found->get<std::string>()))
      fail_here("{}: expected turn, all, last or none, found {}", name, found_text(*found));
    return found->get<std::string>();
  }

  // tokenizer_default is the file's template, which takes the place of the tokenizer's.
  void note_template(const json& item) {
    const std::string name = axolotl_chat_template(item, line_, settings_);
    std::optional<ConfigSetting> found;
    if (!name.empty()) found = {"chat_template", name, line_};
    if (has_template_ && found.has_value() != template_.has_value())
      fail_here("chat_template: expected one for all data sets: set it once, for the file");
    if (template_ && template_->value != found->value)
      fail_here("chat_template: expected one for all data sets, found {} and {}",
                found_text(template_->value), found_text(found->value));
    has_template_ = true;
    template_ = std::move(found);
  }

  const AxolotlChats& chats_;
  ForeignSettings& settings_;
  std::string list_;  // the list being read
  int64_t line_ = 1;
  bool has_template_ = false;  // of a data set with conversations
  std::optional<ConfigSetting> template_;
};

}  // namespace

std::optional<ConfigSetting> translate_axolotl_datasets(const AxolotlChats& chats,
                                                        ForeignSettings* settings) {
  return AxolotlDatasets(chats, settings).run();
}

std::string axolotl_chat_template(const json& object, int64_t line, const ForeignSettings& settings) {
  const std::string name = text_of(object, "chat_template");
  const std::string jinja = text_of(object, "chat_template_jinja");
  if (name == "jinja" && jinja.empty())
    settings.fail_in(line, "chat_template jinja: expected chat_template_jinja beside it");
  if (!jinja.empty() && (name.empty() || name == "jinja")) return jinja;
  if (name.empty() || name == "tokenizer_default") return "";
  static constexpr std::string_view kFallback = "tokenizer_default_fallback_";
  const std::string_view built_in =
      name.starts_with(kFallback) ? std::string_view(name).substr(kFallback.size()) : std::string_view(name);
  if (built_in == "chatml" || built_in == "llama3") return name;
  const std::vector<std::string> known = builtin_chat_template_names(kAxolotlPrefix);
  if (std::find(known.begin(), known.end(), built_in) != known.end())
    return fmt::format("{}{}{}", name.substr(0, name.size() - built_in.size()), kAxolotlPrefix, built_in);
  settings.fail_in(
      line,
      "chat_template: {} is not built in (chatml, llama3, {} are): leave it out to use the model's "
      "own, or name a file in chat_template_jinja, such as {}.jinja of Axolotl's "
      "utils/chat_templates/templates",
      printable(name), fmt::join(known, ", "), printable(built_in));
}

bool settle_axolotl_key(const std::string& name, const json& value, int64_t line, const std::string& where,
                        ForeignSettings* settings) {
  const CompatName* known = compat_table("axolotl").find(where.empty() ? name : "datasets." + name);
  if (known == nullptr || known->use == CompatUse::kSame || known->use == CompatUse::kRead) return false;
  const std::string text = word_of_value(value);
  if (known->use == CompatUse::kRefused && !known->accepts(text)) {
    settings->fail_in(line, "{}{}: {}; leave it out (found {})", where.empty() ? "" : where + ": ", name,
                      known->detail, found_text(value));
  }
  if (known->use == CompatUse::kNoEffect && lower_case(text) != "false")
    settings->note_no_effect(name, std::string(known->detail));
  return true;
}

}  // namespace tessera
