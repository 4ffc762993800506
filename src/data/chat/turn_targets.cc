#include "data/chat/turn_targets.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<std::string_view, EndTargets>, 4> kEndTargets = {{
    {"turn", EndTargets::kTurn},
    {"all", EndTargets::kAll},
    {"last", EndTargets::kLast},
    {"none", EndTargets::kNone},
}};

// Follows one kind of end token from message to message.
class EndMarker {
 public:
  EndMarker(std::span<const int32_t> ids, std::vector<int32_t> ends, EndTargets rule,
            std::vector<int32_t>* labels)
      : ids_(ids), ends_(std::move(ends)), rule_(rule), labels_(*labels) {}

  // After the message that ends before token `turn_end`, which may be -1.
  void after_turn(int64_t turn_end, bool is_target) {
    const int64_t at = find_from(turn_end);
    constexpr int64_t kMaxDistance = 3;  // tokens a template may write between a message and its end
    if (at < 0 || std::abs(at - turn_end) > kMaxDistance) return;
    last_ = at;
    if (rule_ == EndTargets::kAll || (rule_ == EndTargets::kTurn && is_target)) set(at);
  }
  void finish() {
    if (rule_ == EndTargets::kLast && last_ >= 0) set(last_);
  }

 private:
  bool is_end(int64_t at) const {
    return std::find(ends_.begin(), ends_.end(), ids_[static_cast<size_t>(at)]) != ends_.end();
  }
  // In Python, position -1 is the last token; a match there counts as not found.
  int64_t find_from(int64_t begin) const {
    if (begin < 0 && (ids_.empty() || is_end(std::ssize(ids_) - 1))) return -1;
    for (int64_t at = std::max<int64_t>(begin, 0); at < std::ssize(ids_); ++at) {
      if (is_end(at)) return at;
    }
    return -1;
  }
  void set(int64_t at) { labels_[static_cast<size_t>(at)] = ids_[static_cast<size_t>(at)]; }

  std::span<const int32_t> ids_;
  std::vector<int32_t> ends_;
  EndTargets rule_;
  std::vector<int32_t>& labels_;
  int64_t last_ = -1;
};

// The character at which each token of `text` starts; tokens of one character start at it.
std::vector<int64_t> token_starts(const std::string& text, const Tokenizer& tokenizer, int64_t* num_chars) {
  std::vector<int64_t> boundaries;
  for (int64_t at = 0; at < std::ssize(text); ++at) {
    const bool is_continuation = (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) == 0x80;
    if (!is_continuation) boundaries.push_back(at);
  }
  *num_chars = std::ssize(boundaries);
  std::vector<int32_t> ids;
  std::vector<TokenCut> cuts;
  tokenizer.encode(text, /*add_special_tokens=*/false, {.cuts = boundaries, .barriers = {}}, &ids, &cuts);
  std::vector<int64_t> starts(ids.size());
  int64_t token = 0;
  for (size_t c = 0; c < cuts.size(); ++c) {
    // Tokens before the next boundary start in this character.
    const int64_t end = c + 1 < cuts.size() ? cuts[c + 1].token + (cuts[c + 1].is_inside ? 1 : 0)
                                            : static_cast<int64_t>(ids.size());
    for (; token < end; ++token) starts[static_cast<size_t>(token)] = static_cast<int64_t>(c);
  }
  return starts;
}

}  // namespace

std::vector<bool> part_target_tokens(const std::string& content, const std::vector<PartTarget>& parts,
                                     const Tokenizer& tokenizer) {
  int64_t num_chars = 0;
  const std::vector<int64_t> starts = token_starts(content, tokenizer, &num_chars);
  const auto num_tokens = std::ssize(starts);
  const auto start_of = [&](int64_t token) { return starts[static_cast<size_t>(token)]; };
  const auto end_of = [&](int64_t token) {
    return token + 1 < num_tokens ? start_of(token + 1) - 1 : num_chars - 1;
  };
  std::vector<bool> is_target(starts.size(), false);
  for (const PartTarget& part : parts) {
    int64_t first = 0;
    while (first < num_tokens && start_of(first) < part.begin) ++first;
    if (first > 0 && end_of(first - 1) > part.begin) --first;
    int64_t last = num_tokens - 1;
    while (last >= 0 && end_of(last) > part.end) --last;
    if (last < num_tokens - 1 && start_of(last + 1) < part.end) ++last;
    if (!part.is_target || first > last) continue;
    for (int64_t token = 0; token < num_tokens; ++token) {
      if (start_of(token) >= start_of(first) && end_of(token) <= end_of(last))
        is_target[static_cast<size_t>(token)] = true;
    }
  }
  return is_target;
}

std::optional<EndTargets> end_targets_by_name(std::string_view name) {
  for (const auto& [known, targets] : kEndTargets) {
    if (known == name) return targets;
  }
  return std::nullopt;
}

const char* end_targets_name(EndTargets targets) {
  return std::find_if(kEndTargets.begin(), kEndTargets.end(),
                      [targets](const auto& known) { return known.second == targets; })
      ->first.data();
}

std::string TurnTargets::text() const {
  std::string text = fmt::format("all {} eos {} eot {} drop_system {} split {}", all_roles,
                                 end_targets_name(eos), end_targets_name(eot), drop_system, splits_thoughts);
  for (const std::string* field : {&training_field, &detail_field, &thinking_field})
    text += fmt::format(" {}:{}", field->size(), *field);
  text += " roles";
  for (const std::string& role : roles) text += fmt::format(" {}:{}", role.size(), role);
  text += " ends";
  for (const std::string& token : eot_tokens) text += fmt::format(" {}:{}", token.size(), token);
  return text;
}

EndTokens end_tokens_of(const TurnTargets& targets, const std::string& template_source,
                        const Tokenizer& tokenizer) {
  EndTokens ends;
  if (tokenizer.eos_id()) ends.eos = *tokenizer.eos_id();
  const std::string eos_token = tokenizer.eos_id() ? tokenizer.id_to_token(ends.eos) : "";
  const bool is_eos_alone = targets.eot_tokens.size() == 1 && targets.eot_tokens[0] == eos_token;
  if (targets.eot_tokens.empty() || is_eos_alone) {
    if (tokenizer.eos_id()) ends.eot.push_back(ends.eos);
    return ends;
  }
  for (const std::string& token : targets.eot_tokens) {
    if (template_source.find(token) == std::string::npos) continue;
    const std::vector<int32_t> ids = tokenizer.encode(token, /*add_special_tokens=*/false);
    if (ids.size() != 1) {
      fail(ExitCode::kBadConfig, "eot_tokens: expected single tokens of the tokenizer, found '{}' of {}",
           printable(token), ids.size());
    }
    if (token == eos_token && targets.eos != targets.eot) {
      fail(ExitCode::kBadConfig,
           "eot_tokens: '{}' is the end-of-text token, too: train_on_eos {} contradicts train_on_eot {}",
           printable(token), end_targets_name(targets.eos), end_targets_name(targets.eot));
    }
    ends.eot.push_back(ids[0]);
  }
  return ends;
}

std::vector<int32_t> turn_labels(std::span<const int32_t> ids, std::span<const TurnSpan> turns,
                                 const TurnTargets& targets, const EndTokens& ends) {
  std::vector<int32_t> labels(ids.size(), kIgnoredLabel);
  EndMarker eot(ids, ends.eot, targets.eot, &labels);
  EndMarker eos(ids, ends.eos < 0 ? std::vector<int32_t>() : std::vector<int32_t>{ends.eos}, targets.eos,
                &labels);
  for (const TurnSpan& turn : turns) {
    if (turn.is_target && turn.begin >= 0 && turn.is_target_token.empty())
      std::copy(ids.begin() + turn.begin, ids.begin() + turn.end, labels.begin() + turn.begin);
    for (size_t i = 0; turn.begin >= 0 && i < turn.is_target_token.size(); ++i) {
      const size_t at = static_cast<size_t>(turn.begin) + i;
      if (turn.is_target_token[i] && at < ids.size()) labels[at] = ids[at];
    }
    eot.after_turn(turn.end, turn.is_target);
    eos.after_turn(turn.end, turn.is_target);
  }
  eot.finish();
  eos.finish();
  return labels;
}

}  // namespace tessera
