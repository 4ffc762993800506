#include "data/chat/chat_template.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/chat/builtin_templates.h"
#include "data/chat/literal_text.h"
#include "data/chat/messages.h"
#include "data/rows/content_hash.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "io/file.h"
#include "jinja/template.h"

namespace tessera {
namespace {

// As text: a pointer would be a template that says the same of every conversation.
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
  // As in Axolotl: the model's own, or where it has none, one that is built in.
  constexpr std::string_view kFallback = "tokenizer_default_fallback_";
  if (name_or_file.starts_with(kFallback)) {
    const Sources own = read_sources(folder);
    return own.empty() ? chosen_sources(folder, name_or_file.substr(kFallback.size())) : own;
  }
  const bool is_template =
      name_or_file.find("{{") != std::string::npos || name_or_file.find("{%") != std::string::npos;
  if (is_template) return {{"default", {"chat_template", name_or_file}}};
  if (!name_or_file.empty()) {
    const std::string_view source = builtin_chat_template(name_or_file);
    if (!source.empty()) return {{"default", {name_or_file, std::string(source)}}};
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

bool is_assistant(const Value& message) { return *message.find("role")->string() == "assistant"; }

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
    const Value* calls = message.find("tool_calls");
    if (calls == nullptr || calls->list() == nullptr) continue;
    for (const Value& call : *calls->list()) {
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

// All texts within a value, under one id.
void trace(const Value& value, int64_t id, std::vector<jinja::TracedText>* texts) {
  if (const std::string* text = value.string()) texts->push_back({*text, id});
  if (const Value::List* items = value.list()) {
    for (const Value& item : *items) trace(item, id, texts);
  }
  if (const Value::Object* fields = value.object()) {
    for (const Value::Field& field : *fields) {
      texts->push_back({field.name, id});
      trace(field.value, id, texts);
    }
  }
}

// Renders the first messages of a conversation, again and again. Traces what each of them says, by its index.
class PrefixRenderer {
 public:
  PrefixRenderer(const jinja::Template& compiled, Value::Object context, const jinja::RenderOptions& options)
      : compiled_(compiled), context_(std::move(context)), options_(options) {
    options_.traced_items = &messages();
  }
  PrefixRenderer(const PrefixRenderer&) = delete;
  PrefixRenderer& operator=(const PrefixRenderer&) = delete;

  jinja::Rendered render(bool add_generation_prompt, bool track_generation = false) {
    context_[context_.size() - 2].value = add_generation_prompt;
    options_.track_generation = track_generation;
    options_.traced_texts.clear();
    for (int64_t i = 0; i < std::ssize(messages()); ++i) {
      for (const Value::Field& field : *messages()[static_cast<size_t>(i)].object()) {
        if (field.name != "role") trace(field.value, i, &options_.traced_texts);
      }
    }
    return compiled_.render(context_, options_);
  }
  Value::List& messages() { return *context_.back().value.list(); }

 private:
  const jinja::Template& compiled_;
  Value::Object context_;  // ends in add_generation_prompt, messages
  jinja::RenderOptions options_;
};

[[noreturn]] void fail_ambiguous(int64_t message, const char* why) {
  fail(ExitCode::kBadData,
       "the answer in message {} cannot be told from the text around it: the chat template {}; enclose "
       "answers in the template in {{% generation %}}, give another one with --chat_template, or train on "
       "whole "
       "conversations (--assistant_only_loss false)",
       message, why);
}

// Templates by the hash of their source for which TRL 1.16's own templates with {% generation %}, which
// render the same text, enclose more than what follows the generation prompt: an answer begins after
// `header`.
struct HeaderOfAnswers {
  std::string_view hash;
  std::string_view header;
};
constexpr HeaderOfAnswers kHeadersOfAnswers[] = {
    {"c63bde148c12b98b639547fe4d33fa67", "<|im_start|>assistant"},  // Qwen2.5: the line end, too
    {"b59c4fde1d06da0055b25ceb4910aa64", ""},                       // DeepSeek-R1-Distill
};

std::optional<std::string_view> header_of_answers(const std::string& source) {
  const std::string hash = hash_text(source).hex();
  for (const HeaderOfAnswers& known : kHeadersOfAnswers) {
    if (known.hash == hash) return known.header;
  }
  return std::nullopt;
}

// Finds the answers of a template without {% generation %}: what is written while a loop is at an assistant's
// message, after the generation prompt.
class AnswerFinder {
 public:
  // The renderer has all messages.
  AnswerFinder(const jinja::Rendered& whole, const LiteralText& special_tokens,
               std::optional<std::string_view> header, PrefixRenderer* renderer)
      : whole_(whole),
        special_tokens_(special_tokens),
        header_(header),
        renderer_(*renderer),
        all_(renderer->messages()) {}

  std::vector<ChatAnswer> find() {
    std::vector<ChatAnswer> answers;
    for (int64_t i = 0; i < std::ssize(all_); ++i) {
      if (is_assistant(all_[static_cast<size_t>(i)])) find(i, &answers);
    }
    std::sort(answers.begin(), answers.end(),
              [](const ChatAnswer& a, const ChatAnswer& b) { return a.begin < b.begin; });
    return answers;
  }

 private:
  void find(int64_t message, std::vector<ChatAnswer>* answers) {
    const size_t num_before = answers->size();
    bool has_text = !says_something(all_[static_cast<size_t>(message)]);
    for (const jinja::TracedItem& item : whole_.traced_items) {
      if (item.index != message) continue;
      has_text = has_text || first_own_byte(item) < item.end;
      const bool is_first = answers->size() == num_before;
      answers->push_back({is_first ? begin_of(item) : item.begin, item.end, message});
    }
    if (answers->size() == num_before)
      fail_ambiguous(message, "does not write it in a loop over the messages");
    if (!has_text) fail_ambiguous(message, "does not write what it says");
    // What follows the last message, such as an end-of-text token, belongs to it.
    const bool is_last =
        message + 1 == std::ssize(all_) && answers->back().end == whole_.traced_items.back().end;
    if (is_last) answers->back().end = std::ssize(whole_.text);
  }

  static bool says_something(const Value& message) {
    const Value* content = message.find("content");
    return content != nullptr && content->string() != nullptr &&
           content->string()->find_first_not_of(" \t\r\n") != std::string::npos;
  }

  // Of the message's own text within what is written for it; item.end if there is none.
  int64_t first_own_byte(const jinja::TracedItem& item) const {
    for (const jinja::TracedSpan& span : whole_.traced_spans) {
      if (span.id == item.index && span.end > item.begin && span.begin < item.end)
        return std::max(span.begin, item.begin);
    }
    return item.end;
  }

  int64_t begin_of(const jinja::TracedItem& item) {
    if (header_ &&
        std::string_view(whole_.text).substr(static_cast<size_t>(item.begin)).starts_with(*header_))
      return item.begin + std::ssize(*header_);
    const std::optional<jinja::Rendered> before = render(item.index);
    if (before && whole_.text.starts_with(before->text)) {
      const auto begin = std::ssize(before->text);
      if (item.begin <= begin && begin <= item.end) return begin;
    }
    const std::string prompt = generation_prompt(before, item.index);
    if (prompt.empty()) return item.begin;
    // The template writes the prompt in another way (without the <think> of DeepSeek-R1), or first something
    // else (a bos token).
    const std::string_view text =
        std::string_view(whole_.text).substr(0, static_cast<size_t>(first_own_byte(item)));
    for (size_t size = prompt.size(); size > 0; --size) {
      const size_t at = text.find(prompt.substr(0, size), static_cast<size_t>(item.begin));
      if (at == std::string_view::npos) continue;
      const auto end = static_cast<int64_t>(at + size);
      const int64_t begin =
          size == prompt.size() ? end : special_tokens_.before_special_token(whole_.text, end);
      if (begin > static_cast<int64_t>(at)) return begin;
    }
    fail_ambiguous(item.index, "does not continue the text of the messages before it");
  }

  // The first messages with the generation prompt; nullopt if the template refuses them.
  std::optional<jinja::Rendered> render(int64_t num_messages) {
    renderer_.messages().assign(all_.begin(), all_.begin() + num_messages);
    try {
      return renderer_.render(/*add_generation_prompt=*/true);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string generation_prompt(const std::optional<jinja::Rendered>& before, int64_t message) {
    const std::optional<jinja::Rendered> rendered = before ? before : render(std::ssize(all_));
    if (!rendered) fail_ambiguous(message, "refuses the messages before it by themselves");
    const auto& items = rendered->traced_items;
    return rendered->text.substr(items.empty() ? 0 : static_cast<size_t>(items.back().end));
  }

  const jinja::Rendered& whole_;
  const LiteralText& special_tokens_;
  const std::optional<std::string_view> header_;
  PrefixRenderer& renderer_;
  const Value::List all_;
};

// What the template encloses, with the message that it was written for.
std::vector<ChatAnswer> enclosed_answers(const jinja::Rendered& whole) {
  std::vector<ChatAnswer> answers;
  for (const auto& [begin, end] : whole.generation) {
    const auto item = std::find_if(whole.traced_items.begin(), whole.traced_items.end(),
                                   [at = begin](const auto& i) { return i.begin <= at && at <= i.end; });
    answers.push_back({begin, end, item == whole.traced_items.end() ? -1 : item->index});
  }
  return answers;
}

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

// As Axolotl finds a message in the text: where the text is another one if the message says another thing.
// A template may write what begins or ends like the one, but then not like the other.
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
    rendered.answers = AnswerFinder(whole, impl_->literal_text, impl_->header_of_answers, &renderer).find();
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

bool ChatTemplate::is_exchanged_by_trl() const {
  return hash_text(source()).hex() == "0fab82ce8f4d5175c9e0155c80737cf2";  // Qwen3
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
