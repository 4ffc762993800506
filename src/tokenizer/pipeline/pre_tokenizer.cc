#include "tokenizer/pipeline/pre_tokenizer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline/component.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const JsonNode& node) {
  static constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous},
  };
  for (const auto& [name, behavior] : kNames) {
    if (node.string() == name) return behavior;
  }
  node.not_supported("behavior", node.string());
}

// Joins or drops parts as the behavior says. "the-final--countdown" divided at '-':
//   Removed             the final countdown
//   Isolated            the - final - - countdown
//   MergedWithPrevious  the- final- - countdown
//   MergedWithNext      the -final - -countdown
//   Contiguous          the - final -- countdown
std::vector<TextPart> arrange(std::vector<TextPart> parts, Behavior behavior) {
  if (behavior == Behavior::kIsolated) return parts;
  if (behavior == Behavior::kRemoved) {
    std::erase_if(parts, [](const TextPart& part) { return part.is_match; });
    return parts;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<TextPart> out;
  bool former_match = false;
  for (const TextPart& part : parts) {
    const bool join =
        behavior == Behavior::kContiguous ? part.is_match == former_match : part.is_match && !former_match;
    if (join && !out.empty()) {
      out.back().begin = std::min(out.back().begin, part.begin);
      out.back().end = std::max(out.back().end, part.end);
    } else {
      out.push_back(part);
    }
    former_match = part.is_match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

// Replaces every piece by the parts that `divide_piece` finds, arranged.
template <typename Divide>
void split_pieces(Pieces* pieces, Behavior behavior, const Divide& divide_piece) {
  std::vector<Piece> out;
  for (const Piece& piece : pieces->list) {
    for (const TextPart& part : arrange(divide_piece(piece.text), behavior)) {
      if (part.begin == part.end) continue;
      out.push_back(
          {piece.text.substr(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin)),
           piece.at_start && part.begin == 0});
    }
  }
  pieces->list = std::move(out);
}

// Single characters for which `is_match` holds, and the runs between them.
template <typename Predicate>
std::vector<TextPart> divide_by_char(std::string_view text, const Predicate& is_match) {
  std::vector<TextPart> parts;
  int64_t begin = 0;
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t at = 0; at < size;) {
    const auto [code_point, size_bytes] = decode_utf8(text.data() + at);
    if (is_match(code_point)) {
      if (begin < at) parts.push_back({begin, at, false});
      parts.push_back({at, at + size_bytes, true});
      begin = at + size_bytes;
    }
    at += size_bytes;
  }
  if (begin < size) parts.push_back({begin, size, false});
  return parts;
}

std::vector<TextPart> divide_known(std::string_view text, const FastScanner& scanner) {
  std::vector<TextPart> parts;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char* next = scanner.match_end(at, end);
    parts.push_back({at - text.data(), next - text.data(), true});
    at = next;
  }
  return parts;
}

using Step = PreTokenizer::Step;
using Options = PreTokenizerOptions;
using Divide = std::function<std::vector<TextPart>(std::string_view)>;

Divide divide_by(TextPattern pattern, const Options& options) {
  if (const auto* regex = std::get_if<Regex>(&pattern); regex != nullptr && options.fast_scanner) {
    if (const auto known = known_pattern(regex->pattern()))
      return [scanner = FastScanner(*known)](std::string_view text) { return divide_known(text, scanner); };
  }
  return [shared = std::make_shared<const TextPattern>(std::move(pattern))](std::string_view text) {
    return divide(text, *shared);
  };
}

Step split_step(const JsonNode& node, const Options& options) {
  node.expect_keys({"type", "pattern", "behavior", "invert"});
  const Divide divide_piece = divide_by(read_pattern(node["pattern"]), options);
  const Behavior behavior = behavior_of(node["behavior"]);
  const bool invert = node["invert"].boolean();
  return [divide_piece, behavior, invert](Pieces* pieces) {
    split_pieces(pieces, behavior, [&](std::string_view text) {
      std::vector<TextPart> parts = divide_piece(text);
      for (TextPart& part : parts) part.is_match ^= invert;
      return parts;
    });
  };
}

Step byte_level_step(const JsonNode& node, const Options& options) {
  node.expect_keys({"type", "add_prefix_space", "use_regex", "trim_offsets"});
  const bool add_prefix_space = node["add_prefix_space"].boolean_or(true);
  const bool use_regex = node["use_regex"].boolean_or(true);
  const Divide divide_piece = divide_by(Regex(kGpt2Pattern, node.where()), options);
  return [=, raw_bytes = options.raw_bytes](Pieces* pieces) {
    if (add_prefix_space) {
      for (Piece& piece : pieces->list) {
        if (!piece.text.starts_with(' ')) piece.text = pieces->keep(" " + std::string(piece.text));
      }
    }
    if (use_regex) split_pieces(pieces, Behavior::kIsolated, divide_piece);
    if (!raw_bytes) {
      for (Piece& piece : pieces->list) piece.text = pieces->keep(byte_level_encode(piece.text));
    }
  };
}

Step metaspace_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const JsonNode scheme = node["prepend_scheme"];
  const bool legacy = node["add_prefix_space"].boolean_or(true);
  const std::string name = scheme.string_or(legacy ? "always" : "never");
  if (name != "always" && name != "first" && name != "never") scheme.not_supported("prepend_scheme", name);
  if (!legacy && name != "never") scheme.expected("\"never\", as add_prefix_space is false");
  return [name, replacement = node["replacement"].one_char(),
          splits = node["split"].boolean_or(true)](Pieces* pieces) {
    std::vector<Piece> out;
    out.reserve(pieces->list.size());
    for (const Piece& piece : pieces->list) {
      std::string text;
      const bool prepend = name == "always" || (name == "first" && piece.at_start);
      if (prepend && !piece.text.starts_with(' ') && !piece.text.starts_with(replacement)) text = replacement;
      text.reserve(text.size() + piece.text.size() + 16);
      for (const char c : piece.text) {
        if (c == ' ') {
          text += replacement;
        } else {
          text += c;
        }
      }
      // The parts begin at the replacement.
      const std::string_view whole = pieces->keep(std::move(text));
      for (size_t begin = 0; begin < whole.size();) {
        const size_t end = std::min(splits ? whole.find(replacement, begin + 1) : whole.npos, whole.size());
        out.push_back({whole.substr(begin, end - begin), piece.at_start && begin == 0});
        begin = end;
      }
    }
    pieces->list = std::move(out);
  };
}

// Splits at the characters of one property.
template <bool (*is_match)(char32_t)>
Step char_step(Behavior behavior) {
  return [behavior](Pieces* pieces) {
    split_pieces(pieces, behavior, [](std::string_view text) { return divide_by_char(text, is_match); });
  };
}

Step digits_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type", "individual_digits"});
  return char_step<is_numeric>(node["individual_digits"].boolean() ? Behavior::kIsolated
                                                                   : Behavior::kContiguous);
}

Step punctuation_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type", "behavior"});
  const JsonNode behavior = node["behavior"];
  return char_step<is_punctuation>(behavior.is_null() ? Behavior::kIsolated : behavior_of(behavior));
}

// Words, and marks of punctuation one by one.
Step bert_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type"});
  return [](Pieces* pieces) {
    split_pieces(pieces, Behavior::kRemoved,
                 [](std::string_view text) { return divide_by_char(text, is_whitespace); });
    split_pieces(pieces, Behavior::kIsolated,
                 [](std::string_view text) { return divide_by_char(text, is_punctuation); });
  };
}

Step whitespace_split_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type"});
  return char_step<is_whitespace>(Behavior::kRemoved);
}

// The matches of \w+|[^\w\s]+, nothing else.
std::vector<TextPart> divide_words(std::string_view text) {
  enum class Kind { kWord, kSpace, kOther };
  std::vector<TextPart> parts;
  Kind former = Kind::kSpace;
  for (int64_t at = 0; at < static_cast<int64_t>(text.size());) {
    const auto [code_point, size_bytes] = decode_utf8(text.data() + at);
    const Kind kind = is_word_char(code_point)    ? Kind::kWord
                      : is_whitespace(code_point) ? Kind::kSpace
                                                  : Kind::kOther;
    if (kind == former && kind != Kind::kSpace) {
      parts.back().end += size_bytes;
    } else if (kind != Kind::kSpace) {
      parts.push_back({at, at + size_bytes, true});
    }
    former = kind;
    at += size_bytes;
  }
  return parts;
}

Step whitespace_step(const JsonNode& node, const Options&) {
  node.expect_keys({"type"});
  return [](Pieces* pieces) { split_pieces(pieces, Behavior::kIsolated, divide_words); };
}

constexpr std::pair<std::string_view, Step (*)(const JsonNode&, const Options&)> kPreTokenizers[] = {
    {"BertPreTokenizer", bert_step},   {"ByteLevel", byte_level_step},
    {"Digits", digits_step},           {"Metaspace", metaspace_step},
    {"Punctuation", punctuation_step}, {"Split", split_step},
    {"Whitespace", whitespace_step},   {"WhitespaceSplit", whitespace_split_step},
};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node, const PreTokenizerOptions& options) {
  if (node.is_null()) return nullptr;
  std::vector<Step> steps;
  for (const JsonNode& step : components_of(node, "pretokenizers"))
    steps.push_back(make_component(kPreTokenizers, "pre-tokenizer", step, options));
  return std::make_unique<PreTokenizer>(std::move(steps));
}

bool ends_in_byte_level(const JsonNode& node) {
  const std::vector<JsonNode> steps = components_of(node, "pretokenizers");
  const auto is_byte_level = [](const JsonNode& step) { return step.type() == "ByteLevel"; };
  return !steps.empty() && is_byte_level(steps.back()) &&
         std::count_if(steps.begin(), steps.end(), is_byte_level) == 1;
}

std::optional<KnownSplit> known_split(const JsonNode& node) {
  const std::vector<JsonNode> steps = components_of(node, "pretokenizers");
  if (steps.empty() || steps.back().type() != "ByteLevel") return std::nullopt;
  const bool add_prefix_space = steps.back()["add_prefix_space"].boolean_or(true);
  const bool use_regex = steps.back()["use_regex"].boolean_or(true);
  if (steps.size() == 1 && use_regex) return KnownSplit{KnownPattern::kGpt2, add_prefix_space};
  if (steps.size() != 2 || use_regex || add_prefix_space || steps[0].type() != "Split") return std::nullopt;
  const JsonNode regex = steps[0]["pattern"].is_object() ? steps[0]["pattern"]["Regex"] : steps[0]["pattern"];
  if (regex.is_null() || !steps[0]["pattern"].is_object()) return std::nullopt;
  const auto pattern = known_pattern(regex.string());
  if (!pattern) return std::nullopt;
  // The patterns match everything, so removing what they do not match equals isolating what they match.
  const bool invert = steps[0]["invert"].boolean();
  const Behavior behavior = behavior_of(steps[0]["behavior"]);
  const bool isolates =
      (behavior == Behavior::kIsolated && !invert) || (behavior == Behavior::kRemoved && invert);
  if (!isolates) return std::nullopt;
  return KnownSplit{*pattern, false};
}

}  // namespace tessera
