#include "tokenizer/pipeline/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/pipeline/byte_level.h"
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

class SequencePreTokenizer final : public PreTokenizer {
 public:
  SequencePreTokenizer(const JsonNode& node, const PreTokenizerOptions& options) {
    node.expect_keys({"type", "pretokenizers"});
    for (const JsonNode& part : node["pretokenizers"].list()) {
      if (part.is_null()) part.expected("a pre-tokenizer");
      parts_.push_back(make_pre_tokenizer(part, options));
    }
  }
  void apply(Pieces* pieces) const override {
    for (const auto& part : parts_) part->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

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

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(const JsonNode& node, const PreTokenizerOptions& options)
      : pattern_(read_pattern(node["pattern"])),
        behavior_(behavior_of(node["behavior"])),
        invert_(node["invert"].boolean()) {
    node.expect_keys({"type", "pattern", "behavior", "invert"});
    if (const auto* regex = std::get_if<Regex>(&pattern_); regex != nullptr && options.fast_scanner) {
      if (const auto known = known_pattern(regex->pattern())) scanner_.emplace(*known);
    }
  }
  void apply(Pieces* pieces) const override {
    split_pieces(pieces, behavior_, [this](std::string_view text) {
      std::vector<TextPart> parts = scanner_ ? divide_known(text, *scanner_) : divide(text, pattern_);
      for (TextPart& part : parts) part.is_match ^= invert_;
      return parts;
    });
  }

 private:
  TextPattern pattern_;
  Behavior behavior_;
  bool invert_;
  std::optional<FastScanner> scanner_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(const JsonNode& node, const PreTokenizerOptions& options)
      : add_prefix_space_(node["add_prefix_space"].boolean_or(true)),
        use_regex_(node["use_regex"].boolean_or(true)),
        raw_bytes_(options.raw_bytes),
        pattern_(Regex(kGpt2Pattern, node.where())) {
    node.expect_keys({"type", "add_prefix_space", "use_regex", "trim_offsets"});
    if (options.fast_scanner) scanner_.emplace(KnownPattern::kGpt2);
  }
  void apply(Pieces* pieces) const override {
    if (add_prefix_space_) {
      for (Piece& piece : pieces->list) {
        if (!piece.text.starts_with(' ')) piece.text = pieces->keep(" " + std::string(piece.text));
      }
    }
    if (use_regex_) {
      split_pieces(pieces, Behavior::kIsolated, [this](std::string_view text) {
        return scanner_ ? divide_known(text, *scanner_) : divide(text, pattern_);
      });
    }
    if (!raw_bytes_) {
      for (Piece& piece : pieces->list) piece.text = pieces->keep(byte_level_encode(piece.text));
    }
  }

 private:
  bool add_prefix_space_;
  bool use_regex_;
  bool raw_bytes_;
  TextPattern pattern_;
  std::optional<FastScanner> scanner_;
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const JsonNode& node)
      : replacement_(node["replacement"].one_char()), split_(node["split"].boolean_or(true)) {
    node.expect_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    scheme_ = metaspace_prepend_scheme(node);
  }

  static std::string metaspace_prepend_scheme(const JsonNode& node) {
    const JsonNode scheme = node["prepend_scheme"];
    const bool legacy = node["add_prefix_space"].boolean_or(true);
    const std::string name = scheme.string_or(legacy ? "always" : "never");
    if (name != "always" && name != "first" && name != "never") scheme.not_supported("prepend_scheme", name);
    if (!legacy && name != "never") scheme.expected("\"never\", as add_prefix_space is false");
    return name;
  }

  void apply(Pieces* pieces) const override {
    for (Piece& piece : pieces->list) {
      std::string text = replace_all(piece.text, std::string(" "), replacement_);
      const bool prepend = scheme_ == "always" || (scheme_ == "first" && piece.at_start);
      if (prepend && !text.starts_with(replacement_)) text.insert(0, replacement_);
      piece.text = pieces->keep(std::move(text));
    }
    if (!split_) return;
    const TextPattern pattern = replacement_;
    split_pieces(pieces, Behavior::kMergedWithNext,
                 [&pattern](std::string_view text) { return divide(text, pattern); });
  }

 private:
  std::string replacement_;
  std::string scheme_;
  bool split_;
};

// Splits at the characters of one property.
template <bool (*is_match)(char32_t)>
class CharSplit final : public PreTokenizer {
 public:
  explicit CharSplit(Behavior behavior) : behavior_(behavior) {}
  void apply(Pieces* pieces) const override {
    split_pieces(pieces, behavior_, [](std::string_view text) { return divide_by_char(text, is_match); });
  }

 private:
  Behavior behavior_;
};

// The matches of \w+|[^\w\s]+, nothing else.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces* pieces) const override { split_pieces(pieces, Behavior::kIsolated, words); }

 private:
  enum class Kind { kWord, kSpace, kOther };

  static Kind kind_of(char32_t code_point) {
    return is_word_char(code_point) ? Kind::kWord : is_whitespace(code_point) ? Kind::kSpace : Kind::kOther;
  }

  static std::vector<TextPart> words(std::string_view text) {
    std::vector<TextPart> parts;
    Kind former = Kind::kSpace;
    for (int64_t at = 0; at < static_cast<int64_t>(text.size());) {
      const auto [code_point, size_bytes] = decode_utf8(text.data() + at);
      const Kind kind = kind_of(code_point);
      if (kind != Kind::kSpace) {
        if (kind == former) {
          parts.back().end += size_bytes;
        } else {
          parts.push_back({at, at + size_bytes, true});
        }
      }
      former = kind;
      at += size_bytes;
    }
    return parts;
  }
};

// The steps of a pre-tokenizer, with every Sequence expanded.
void flatten(const JsonNode& node, std::vector<JsonNode>* steps) {
  if (node.is_null()) return;
  if (node.type() != "Sequence") {
    steps->push_back(node);
    return;
  }
  for (const JsonNode& part : node["pretokenizers"].list()) flatten(part, steps);
}

std::vector<JsonNode> flatten(const JsonNode& node) {
  std::vector<JsonNode> steps;
  flatten(node, &steps);
  return steps;
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node, const PreTokenizerOptions& options) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.type();
  if (type == "Sequence") return std::make_unique<SequencePreTokenizer>(node, options);
  if (type == "Split") return std::make_unique<SplitPreTokenizer>(node, options);
  if (type == "ByteLevel") return std::make_unique<ByteLevelPreTokenizer>(node, options);
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(node);
  if (type == "Digits") {
    node.expect_keys({"type", "individual_digits"});
    const bool individual = node["individual_digits"].boolean();
    return std::make_unique<CharSplit<is_numeric>>(individual ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    node.expect_keys({"type", "behavior"});
    const JsonNode behavior = node["behavior"];
    return std::make_unique<CharSplit<is_punctuation>>(behavior.is_null() ? Behavior::kIsolated
                                                                          : behavior_of(behavior));
  }
  if (type == "WhitespaceSplit") {
    node.expect_keys({"type"});
    return std::make_unique<CharSplit<is_whitespace>>(Behavior::kRemoved);
  }
  if (type == "Whitespace") {
    node.expect_keys({"type"});
    return std::make_unique<WhitespacePreTokenizer>();
  }
  node.not_supported("pre-tokenizer", type);
}

bool ends_in_byte_level(const JsonNode& node) {
  const std::vector<JsonNode> steps = flatten(node);
  const auto is_byte_level = [](const JsonNode& step) { return step.type() == "ByteLevel"; };
  return !steps.empty() && is_byte_level(steps.back()) &&
         std::count_if(steps.begin(), steps.end(), is_byte_level) == 1;
}

std::optional<KnownSplit> known_split(const JsonNode& node) {
  const std::vector<JsonNode> steps = flatten(node);
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
