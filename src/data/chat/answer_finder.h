// Finds the parts of a rendered conversation that the assistant wrote.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"
#include "data/chat/chat_template.h"
#include "data/chat/literal_text.h"
#include "jinja/template.h"

namespace tessera {

// Whether the assistant wrote the message, which has a string `role`.
bool is_assistant(const Value& message);

// Renders prefixes of a conversation repeatedly. Traces the text of each message, by its index.
class PrefixRenderer {
 public:
  PrefixRenderer(const jinja::Template& compiled, Value::Object context, const jinja::RenderOptions& options)
      : compiled_(compiled), context_(std::move(context)), options_(options) {
    options_.traced_items = &messages();
  }
  PrefixRenderer(const PrefixRenderer&) = delete;
  PrefixRenderer& operator=(const PrefixRenderer&) = delete;

  jinja::Rendered render(bool add_generation_prompt, bool track_generation = false);
  Value::List& messages() { return *context_.back().value.list(); }

 private:
  const jinja::Template& compiled_;
  Value::Object context_;  // ends in add_generation_prompt, messages
  jinja::RenderOptions options_;
};

// The header of an answer, as TRL 1.16 sees it in a template with this source: everything after it is the
// answer. nullopt for templates in which answers follow the generation prompt.
std::optional<std::string_view> header_of_answers(const std::string& source);

// Finds the answers of a template without {% generation %} by their place: the text that a loop writes at an
// assistant's message, after the generation prompt. The renderer has all messages, and is left with some of
// them. Error(kBadData): an answer cannot be told from the text around it.
std::vector<ChatAnswer> find_answers(const jinja::Rendered& whole, const LiteralText& special_tokens,
                                     std::optional<std::string_view> header, PrefixRenderer* renderer);

// The text that the template encloses, with the message it was written for.
std::vector<ChatAnswer> enclosed_answers(const jinja::Rendered& whole);

}  // namespace tessera
