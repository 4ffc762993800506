#include "data/chat/chat_template.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/cache/content_hash.h"
#include "data/chat/answer_finder.h"
#include "data/chat/builtin_templates.h"
#include "data/chat/literal_text.h"
#include "data/chat/messages.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "io/file.h"
#include "jinja/template.h"

namespace tessera {
namespace {

// Read as text. A Git LFS pointer would otherwise be a template that writes the same for every conversation.
std::string read_template(const std::filesystem::path& path) {
  std::string text = read_text_file(path);
  if (text.starts_with(kLfsPointerStart))
    fail(ExitCode::kBadData, "{}: expected a chat template, found {}", path.string(), kLfsPointer);
  return text;
}

namespace fs = std::filesystem;

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kMoreTemplates = "additional_chat_templates";
constexpr const char* kWaysToGiveOne =
    "give one with --chat_template: a file, or the name of one that is built in ({})";

struct NamedSource {
  std::string origin;
  std::string source;
};
using Sources = std::map<std::string, NamedSource>;

// The templates of a model's folder by name.
Sources read_sources(const fs::path& folder) {
  Sources sources;
  const fs::path config_path = folder / "tokenizer_config.json";
  const std::string origin = config_path.string();
  const Json config = parse_json_file_if_any(config_path);
  const JsonNode node = JsonNode(config, origin)["chat_template"];
  if (node.is_string()) {
    sources["default"] = {node.where(), node.string()};
  } else if (!node.is_null()) {
    for (const JsonNode& entry : node.list())
      sources[entry["name"].string()] = {entry["template"].where(), entry["template"].string()};
  }
  if (fs::exists(folder / kTemplateFile))
    sources["default"] = {(folder / kTemplateFile).string(), read_template(folder / kTemplateFile)};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder / kMoreTemplates, none)) {
    if (entry.path().extension() != ".jinja") continue;
    sources[entry.path().stem().string()] = {entry.path().string(), read_template(entry.path())};
  }
  return sources;
}

Sources chosen_sources(const fs::path& folder, const std::string& name_or_file) {
  // Axolotl does the same: the model's own template or, if it has none, a built-in one.
  constexpr std::string_view kFallback = "tokenizer_default_fallback_";
  if (name_or_file.starts_with(kFallback)) {
    const Sources own = read_sources(folder);
    return own.empty() ? chosen_sources(folder, name_or_file.substr(kFallback.size())) : own;
  }
  const bool is_template =
      name_or_file.find("{{") != std::string::npos || name_or_file.find("{%") != std::string::npos;
  if (is_template) return {{"default", {"chat_template", name_or_file}}};
  if (!name_or_file.empty()) {
    const std::string source = builtin_chat_template(name_or_file);
    if (!source.empty()) return {{"default", {name_or_file, source}}};
    if (!fs::exists(name_or_file)) {
      fail(ExitCode::kNoInput, "--chat_template {}: no such file, nor a template that is built in ({})",
           printable(name_or_file, 200), fmt::join(builtin_chat_template_names(), ", "));
    }
    if (!fs::is_directory(name_or_file)) return {{"default", {name_or_file, read_template(name_or_file)}}};
  }
  Sources sources = read_sources(name_or_file.empty() ? folder : fs::path(name_or_file));
  if (sources.empty()) {
    fail(ExitCode::kBadConfig, "{}: the model has no chat template, which conversations need: {}",
         folder.string(), fmt::format(kWaysToGiveOne, fmt::join(builtin_chat_template_names(), ", ")));
  }
  if (!sources.contains("default")) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : sources) names.push_back(name);
    fail(ExitCode::kBadConfig, "{}: expected a chat template with the name 'default', found {}: {}",
         folder.string(), fmt::join(names, ", "),
         fmt::format(kWaysToGiveOne, fmt::join(builtin_chat_template_names(), ", ")));
  }
  return sources;
}

// bos_token, eos_token, ... as variables of templates.
Value::Object special_token_variables(const Tokenizer& tokenizer) {
  Value::Object variables;
  for (const auto& [name, text] : tokenizer.named_special_tokens()) variables.push_back({name, text});
  return variables;
}

std::optional<std::tm> parse_date(const std::string& date) {
  if (date.empty()) return std::nullopt;
  std::tm time = {};
  const char* end = ::strptime(date.c_str(), "%Y-%m-%d", &time);
  if (end == nullptr || *end != '\0') {
    fail(ExitCode::kBadConfig, "chat_template_date: expected YYYY-MM-DD or nothing for today, found '{}'",
         printable(date, 40));
  }
  time.tm_isdst = -1;
  std::mktime(&time);  // fills in the day of the week
  return time;
}

// By answer, whether its message has the weight 0; empty if none has.
std::vector<bool> answers_without_weight(const Value::List& messages,
                                         const std::vector<ChatAnswer>& answers) {
  std::vector<int64_t> of_assistant;
  std::vector<bool> has_none;  // by message
  for (const Value& message : messages) {
    const Value* weight = message.find("weight");
    if (is_assistant(message)) of_assistant.push_back(std::ssize(has_none));
    has_none.push_back(is_assistant(message) && weight != nullptr && *weight == Value(0));
  }
  if (std::find(has_none.begin(), has_none.end(), true) == has_none.end()) return {};
  std::vector<bool> without;
  for (size_t i = 0; i < answers.size(); ++i) {
    int64_t message = answers[i].message;
    if (message < 0 && answers.size() == of_assistant.size()) message = of_assistant[i];
    if (message < 0) {
      fail(ExitCode::kBadData,
           "a message has the weight 0, but the chat template's {{% generation %}} encloses {} in {} of the "
           "assistant: enclose each of them once",
           count_of(std::ssize(answers), "part"), count_of(std::ssize(of_assistant), "message"));
    }
    without.push_back(has_none[static_cast<size_t>(message)]);
  }
  return without;
}

// The arguments of tool calls as a template prints them that does not turn them into JSON.
std::vector<std::string> printed_arguments(const Value::List& messages) {
  static const jinja::Template kPrint = jinja::Template::parse("{{ value }}", "arguments");
  std::vector<std::string> printed;
  for (const Value& message : messages) {
    const Value::List* calls = message.find_list("tool_calls");
    if (calls == nullptr) continue;
    for (const Value& call : *calls) {
      const Value* function = call.find("function");
      const Value* arguments = (function == nullptr ? &call : function)->find("arguments");
      if (arguments != nullptr && arguments->object() != nullptr && !arguments->object()->empty())
        printed.push_back(kPrint.render({{"value", *arguments}}).text);
    }
  }
  return printed;
}

}  // namespace

struct ChatTemplate::Impl {
  explicit Impl(LiteralText text) : literal_text(std::move(text)) {}

  std::map<std::string, jinja::Template> templates;
  Sources sources;
  Value::Object special_tokens;
  LiteralText literal_text;
  jinja::RenderOptions jinja_options;
  std::string date;
  std::optional<std::string_view> header_of_answers;  // of the default template

  const jinja::Template& choose(const ChatExample& chat) const {
    const auto tool_use = templates.find("tool_use");
    return !chat.tools.is_null() && tool_use != templates.end() ? tool_use->second : templates.at("default");
  }

  // Whether the template takes arguments of tool calls as objects, which most turn into JSON. A few join them
  // with text, or print them as they are: those take the JSON that the data have.
  bool takes_objects(const ChatExample& chat) const {
    std::string text;
    try {
      text = choose(chat).render(context_of(chat), jinja_options).text;
    } catch (const jinja::RaisedByTemplate&) {
      return true;
    } catch (const Error&) {
      return false;
    }
    const std::vector<std::string> printed = printed_arguments(chat.messages);
    return std::none_of(printed.begin(), printed.end(), [&](const std::string& arguments) {
      return text.find(arguments) != std::string::npos;
    });
  }

  Value::Object context_of(const ChatExample& chat) const {
    Value::Object context = chat.more;
    context.insert(context.end(), special_tokens.begin(), special_tokens.end());
    context.push_back({"tools", chat.tools});
    context.push_back({"documents", {}});
    context.push_back({"add_generation_prompt", false});
    Value::List messages = chat.messages;
    for (Value& message : messages)
      std::erase_if(*message.object(), [](const Value::Field& field) { return field.name == "weight"; });
    context.push_back({"messages", std::move(messages)});
    return context;
  }
};

namespace {

// Where `whole` differs from `other`, which has another content in one place.
std::pair<int64_t, int64_t> difference(std::string_view whole, std::string_view other) {
  const size_t limit = std::min(whole.size(), other.size());
  const auto begin = static_cast<size_t>(
      std::mismatch(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(limit), other.begin()).first -
      whole.begin());
  const auto [end, unused] = std::mismatch(
      whole.rbegin(), whole.rbegin() + static_cast<std::ptrdiff_t>(limit - begin), other.rbegin());
  return {static_cast<int64_t>(begin), static_cast<int64_t>(whole.rend() - end)};
}

// Axolotl finds a message in the text the same way: where the text changes if the message does. A template
// may write text that begins or ends like one of these, but then not like the other.
constexpr std::string_view kOtherContents[] = {"[[dummy_message]]", "zzdummymessagezz"};

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const fs::path& folder, const Tokenizer& tokenizer,
                                const ChatTemplateOptions& options) {
  Sources sources = chosen_sources(folder, options.name_or_file);
  auto impl = std::make_unique<Impl>(LiteralText(tokenizer.special_tokens()));
  impl->special_tokens = special_token_variables(tokenizer);
  if (!options.eos_token.empty()) {
    std::erase_if(impl->special_tokens, [](const Value::Field& field) { return field.name == "eos_token"; });
    impl->special_tokens.push_back({"eos_token", options.eos_token});
  }
  impl->date = options.date;
  for (const auto& [name, source] : sources)
    impl->templates.emplace(name, jinja::Template::parse(source.source, source.origin));
  impl->header_of_answers = header_of_answers(sources.at("default").source);
  impl->sources = std::move(sources);
  if (const std::optional<std::tm> date = parse_date(options.date))
    impl->jinja_options.clock = [date = *date] { return date; };
  return ChatTemplate(std::move(impl));
}

RenderedChat ChatTemplate::render(const ChatExample& given, const RenderOptions& options) const {
  ChatExample parsed = given;
  const bool is_parsed = parse_tool_arguments(&parsed.messages) && impl_->takes_objects(parsed);
  const ChatExample& chat = is_parsed ? parsed : given;
  const jinja::Template& compiled = impl_->choose(chat);
  PrefixRenderer renderer(compiled, impl_->context_of(chat), impl_->jinja_options);
  const bool tracks = options.find_answers && compiled.has_generation();
  jinja::Rendered whole = renderer.render(options.add_generation_prompt, tracks);
  RenderedChat rendered;
  if (tracks) {
    rendered.answers = enclosed_answers(whole);
  } else if (options.find_answers) {
    rendered.answers = find_answers(whole, impl_->literal_text, impl_->header_of_answers, &renderer);
  }
  if (!options.parse_special_tokens) {
    rendered.barriers = impl_->literal_text.barriers(whole.text, whole.traced_spans, [&](int64_t message) {
      const std::string& role = *chat.messages[static_cast<size_t>(message)].find("role")->string();
      return role != "system" && role != "assistant";
    });
  }
  if (options.find_answers) rendered.has_no_weight = answers_without_weight(chat.messages, rendered.answers);
  rendered.text = std::move(whole.text);
  for (const auto& [index, kept_field] : options.find_turns) {
    Value& message = renderer.messages()[static_cast<size_t>(index)];
    const Value original = message;
    std::pair<int64_t, int64_t> turn = {std::ssize(rendered.text), 0};
    for (const std::string_view content : kOtherContents) {
      message = Value::Object{{"role", *original.find("role")}, {"content", content}};
      const Value* kept = kept_field.empty() ? nullptr : original.find(kept_field);
      if (kept != nullptr) message.object()->push_back({kept_field, *kept});
      const std::string other = renderer.render(options.add_generation_prompt).text;
      const auto [begin, end] = difference(rendered.text, other);
      turn = {std::min(turn.first, begin), std::max(turn.second, end)};
    }
    message = original;
    rendered.turns.push_back(turn);
  }
  return rendered;
}

const std::string& ChatTemplate::source() const { return impl_->sources.at("default").source; }

std::optional<int32_t> ChatTemplate::end_of_answer(const Tokenizer& tokenizer) const {
  constexpr std::string_view kAnswer = "0fXq";  // occurs nowhere else
  ChatExample chat;
  chat.messages = {Value::Object{{"role", "user"}, {"content", "?"}},
                   Value::Object{{"role", "assistant"}, {"content", kAnswer}}};
  std::string text;
  try {
    text = render(chat, {}).text;
  } catch (const Error&) {
    return std::nullopt;  // it wants other messages
  }
  const size_t at = text.find(kAnswer);
  if (at == std::string::npos) return std::nullopt;
  const std::vector<std::string> special = tokenizer.special_tokens();
  for (const int32_t id : tokenizer.encode(std::string_view(text).substr(at + kAnswer.size()), false)) {
    const bool is_special =
        std::find(special.begin(), special.end(), tokenizer.id_to_token(id)) != special.end();
    if (is_special) return id;
  }
  return std::nullopt;
}

bool ChatTemplate::is_replaced_by_trl() const {
  constexpr std::string_view kHashes[] = {
      "0fab82ce8f4d5175c9e0155c80737cf2",  // Qwen3
      "b20ce3c106c0a721ea7113e61d9a8bcf",
      "427b80bb3dda26b10ed0a1d8b9d7e0be",  // Qwen3.5 without and with thoughts
      "572380022568fa7b579b2c2e5ecdae85",  // Qwen3.6
      "b59c4fde1d06da0055b25ceb4910aa64",  // DeepSeek-R1-Distill
      "158e3477a24f6e26a59a37db2b6d44d1",  // GLM-4 MoE
  };
  return std::ranges::find(kHashes, hash_text(source()).hex()) != std::end(kHashes);
}

uint64_t ChatTemplate::fingerprint() const {
  std::string text = impl_->date;
  for (const auto& [name, source] : impl_->sources) text += fmt::format("\n{} {}", name, source.source);
  for (const Value::Field& field : impl_->special_tokens)
    text += fmt::format("\n{} {}", field.name, *field.value.string());
  return hash_name(text);
}

bool has_chat_template(const fs::path& folder) { return !read_sources(folder).empty(); }

}  // namespace tessera
