// Decides which tokens of a conversation are targets, by the rules of Axolotl's chat_template datasets
// (prompt_strategies/chat_template.py of Axolotl 0.19).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tessera {

// Targets among the tokens that end a message: those after target messages, all, only the last of a
// conversation, none.
enum class EndTargets { kTurn, kAll, kLast, kNone };
std::optional<EndTargets> end_targets_by_name(std::string_view name);
const char* end_targets_name(EndTargets targets);

struct TurnTargets {
  std::vector<std::string> roles = {"assistant"};  // their messages are targets
  bool all_roles = false;
  EndTargets eos = EndTargets::kTurn;
  EndTargets eot = EndTargets::kTurn;
  std::vector<std::string> eot_tokens = {};  // empty: the tokenizer's end-of-text token
  // Field of a message that says whether it is a target, whatever its role; "" = none.
  std::string training_field = {};
  // The corresponding field for parts of its content: a list of {"begin_offset", "end_offset", "train"}, in
  // characters, the end included.
  std::string detail_field = {};
  bool drop_system = false;  // leave out a system message at the start
  // Field of the template for thoughts. With splits_thoughts, thoughts at the start of an assistant's content
  // (between <think> and </think>, <reasoning> or <|begin_of_thought|>) are moved into it.
  std::string thinking_field = "reasoning_content";
  bool splits_thoughts = false;
  bool operator==(const TurnTargets&) const = default;

  // For cache keys.
  std::string text() const;
};

// Whether the characters [begin, end] of a message's content are targets.
struct PartTarget {
  int64_t begin = 0;
  int64_t end = 0;
  bool is_target = false;
};

// The target marks in a message itself.
struct MessageMarks {
  std::optional<bool> training = {};
  std::optional<std::vector<PartTarget>> parts = {};
};

// The tokens [begin, end) of a message's content; both -1 if the text does not show it.
struct TurnSpan {
  int64_t begin = -1;
  int64_t end = -1;
  bool is_target = false;
  std::vector<bool> is_target_token = {};  // of the tokens from `begin` on; empty: all up to `end` are
};

// The tokens of `content` that its parts make targets: whole tokens, as Axolotl rounds them.
std::vector<bool> part_target_tokens(const std::string& content, const std::vector<PartTarget>& parts,
                                     const Tokenizer& tokenizer);

// The tokens that end messages.
struct EndTokens {
  int32_t eos = -1;  // -1: none
  std::vector<int32_t> eot;
};
// Error(kBadConfig): an eot token that is several tokens, or is eos with another rule. Eot tokens that
// `template_source` does not name are left out, as in Axolotl.
EndTokens end_tokens_of(const TurnTargets& targets, const std::string& template_source,
                        const Tokenizer& tokenizer);

// The labels of `ids`. `turns` are the messages that are targets, or all if a rule is kAll.
std::vector<int32_t> turn_labels(std::span<const int32_t> ids, std::span<const TurnSpan> turns,
                                 const TurnTargets& targets, const EndTokens& ends);

}  // namespace tessera
