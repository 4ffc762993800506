#include "data/chat/answer_finder.h"

#include <algorithm>

#include "base/error.h"
#include "data/cache/content_hash.h"

namespace tessera {
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
      check_is_own(answers->back());
    }
    if (answers->size() == num_before)
      fail_ambiguous(message, "does not write it in a loop over the messages");
    if (!has_text) fail_ambiguous(message, "does not write what it says");
    // Text after the last message, such as an end-of-text token, belongs to that message.
    const bool is_last =
        message + 1 == std::ssize(all_) && answers->back().end == whole_.traced_items.back().end;
    if (is_last) answers->back().end = std::ssize(whole_.text);
  }

  static bool says_something(const Value& message) {
    const Value* content = message.find("content");
    return content != nullptr && content->string() != nullptr &&
           content->string()->find_first_not_of(" \t\r\n") != std::string::npos;
  }

  // Templates such as Gemma 4's write a tool's reply where they write the call.
  void check_is_own(const ChatAnswer& answer) const {
    for (const jinja::TracedSpan& span : whole_.traced_spans) {
      const bool is_within = span.begin < span.end && answer.begin <= span.begin && span.end <= answer.end;
      if (is_within && !is_assistant(all_[static_cast<size_t>(span.id)]))
        fail_ambiguous(answer.message, "writes what another message says within it");
    }
  }

  // The first byte of the message's own text in what the template writes for it; item.end if there is none.
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
    // The template writes the prompt differently (without the <think> of DeepSeek-R1), or something before it
    // (a bos token).
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

}  // namespace

bool is_assistant(const Value& message) { return *message.find("role")->string() == "assistant"; }

jinja::Rendered PrefixRenderer::render(bool add_generation_prompt, bool track_generation) {
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

std::optional<std::string_view> header_of_answers(const std::string& source) {
  const std::string hash = hash_text(source).hex();
  for (const HeaderOfAnswers& known : kHeadersOfAnswers) {
    if (known.hash == hash) return known.header;
  }
  return std::nullopt;
}

std::vector<ChatAnswer> find_answers(const jinja::Rendered& whole, const LiteralText& special_tokens,
                                     std::optional<std::string_view> header, PrefixRenderer* renderer) {
  return AnswerFinder(whole, special_tokens, header, renderer).find();
}

std::vector<ChatAnswer> enclosed_answers(const jinja::Rendered& whole) {
  std::vector<ChatAnswer> answers;
  for (const auto& [begin, end] : whole.generation) {
    const auto item = std::find_if(whole.traced_items.begin(), whole.traced_items.end(),
                                   [at = begin](const auto& i) { return i.begin <= at && at <= i.end; });
    answers.push_back({begin, end, item == whole.traced_items.end() ? -1 : item->index});
  }
  return answers;
}

}  // namespace tessera
