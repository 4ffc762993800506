// The chat template of a model: turns conversations into text, and finds the answers in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/value.h"
#include "data/chat/example.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct ChatTemplateOptions {
  // A file, the folder of another tokenizer, the name of a template that is built in ("chatml", "llama3"), or
  // a template itself; "" = the model's own, tokenizer_default_fallback_NAME the same and NAME if there is
  // none.
  std::string name_or_file;
  // The date that strftime_now() returns, YYYY-MM-DD; "" = today. Rows must not depend on the day a run
  // resumes.
  std::string date = "2024-07-26";
  std::string eos_token = {};  // the text given to templates; "" = the tokenizer's
};

// Bytes [begin, end) of a text that are an answer: the whole or a part of what an assistant's message became.
struct ChatAnswer {
  int64_t begin, end;
  int64_t message;  // its index; -1 if the template does not tell
};

struct RenderedChat {
  std::string text;
  std::vector<int64_t> barriers;                   // see TextMarks
  std::vector<ChatAnswer> answers;                 // ascending
  std::vector<std::pair<int64_t, int64_t>> turns;  // of each of find_turns; begin >= end: not in the text
  std::vector<bool> has_no_weight;  // by answer: its message has the weight 0; empty if none has
};

struct RenderOptions {
  bool add_generation_prompt = false;
  bool find_answers = false;
  // The text of these messages becomes RenderedChat::turns, without the text of the kept field, if any.
  struct FoundTurn {
    int64_t message;
    std::string kept_field;
  };
  std::vector<FoundTurn> find_turns = {};
  // Read the contents of messages for special tokens, too. Otherwise those of users and tools are text only.
  bool parse_special_tokens = false;
};

class ChatTemplate {
 public:
  // The template of the tokenizer in `folder`, in Transformers' order: chat_template.jinja (and
  // additional_chat_templates/), then chat_template of tokenizer_config.json, a string or a list of named
  // ones, in which "tool_use" is for conversations with tools and "default" for others. Error(kBadConfig) if
  // there is none (says which flag gives one); kBadData for one that is not a template.
  static ChatTemplate load(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                           const ChatTemplateOptions& options = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Given find_answers, the answers are the text that {% generation %} encloses, if the template has it;
  // otherwise the text a loop writes at an assistant's message, after the generation prompt, and for the last
  // message up to the end of the text. Error(kBadData): errors the template itself raises, and answers that
  // cannot be told apart. Thread-safe.
  RenderedChat render(const ChatExample& chat, const RenderOptions& options) const;

  // The source of the default template, for the model's folder.
  const std::string& source() const;
  // The special token with which the template ends an assistant's message, such as <|eot_id|>: where a model
  // stops that was trained with it.
  std::optional<int32_t> end_of_answer(const Tokenizer& tokenizer) const;
  // Whether TRL replaces the default template for one of its own that writes another text.
  bool is_replaced_by_trl() const;
  // Hash of everything that can change what render() returns, for cache keys.
  uint64_t fingerprint() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Whether `folder` has a chat template.
bool has_chat_template(const std::filesystem::path& folder);

}  // namespace tessera
