#include "tokenizer/pipeline/normalizer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tokenizer/pipeline/charsmap.h"
#include "tokenizer/pipeline/component.h"
#include "tokenizer/pipeline/normalizer_steps.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

// U+FDFA becomes 11 times as long by NFKD. A short text may grow more than that.
constexpr int64_t kMaxGrowth = kMaxNormalizedGrowth;
constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

// Prepends a string to non-empty text.
NormalizerStep prepend_step(const JsonNode& node) {
  node.expect_keys({"type", "prepend"});
  return [prefix = node["prepend"].string()](NormalizedText* text, int64_t max_bytes) {
    if (std::ssize(text->text) + std::ssize(prefix) > max_bytes) fail_normalized_growth(max_bytes);
    if (!text->text.empty()) text->text.insert(0, prefix);
  };
}

NormalizerStep replace_step(const JsonNode& node) {
  return [replacement = read_replacement(node)](NormalizedText* text, int64_t max_bytes) {
    const auto& [pattern, content] = *replacement;
    if (content.empty() && text->at_start) {
      const std::vector<TextPart> parts = divide(text->text, pattern);
      if (!parts.empty() && parts.front().is_match) text->at_start = false;
    }
    std::optional<std::string> replaced = replace_all(text->text, pattern, content, max_bytes);
    if (!replaced) fail_normalized_growth(max_bytes);
    text->text = *std::move(replaced);
  };
}

NormalizerStep strip_step(const JsonNode& node) {
  node.expect_keys({"type", "strip_left", "strip_right"});
  const bool left = node["strip_left"].boolean();
  const bool right = node["strip_right"].boolean();
  return [left, right](NormalizedText* text, int64_t) {
    std::string& value = text->text;
    const auto begin = static_cast<size_t>(left ? leading_whitespace(value) : 0);
    if (begin > 0) text->at_start = false;
    value.erase(0, begin);
    if (right) value.resize(value.size() - static_cast<size_t>(trailing_whitespace(value)));
  };
}

NormalizerStep precompiled_step(const JsonNode& node) {
  node.expect_keys({"type", "precompiled_charsmap"});
  return [map = std::make_shared<const Charsmap>(node["precompiled_charsmap"])](NormalizedText* text,
                                                                                int64_t max_bytes) {
    std::optional<std::string> mapped = map->apply(text->text, max_bytes);
    if (!mapped) fail_normalized_growth(max_bytes);
    text->text = *std::move(mapped);
  };
}

constexpr std::pair<std::string_view, NormalizerStep (*)(const JsonNode&)> kSteps[] = {
    {"BertNormalizer", bert_normalizer_step},
    {"Lowercase", lowercase_step},
    {"NFC", unicode_form_step},
    {"NFD", unicode_form_step},
    {"NFKC", unicode_form_step},
    {"NFKD", unicode_form_step},
    {"Nmt", nmt_step},
    {"Precompiled", precompiled_step},
    {"Prepend", prepend_step},
    {"Replace", replace_step},
    {"Strip", strip_step},
    {"StripAccents", strip_accents_step},
};

}  // namespace

void Normalizer::apply(NormalizedText* text) const {
  const int64_t grown = std::max(kSmallBytes, kMaxGrowth * std::ssize(text->text));
  const int64_t max_bytes = std::max(std::ssize(text->text), std::min(grown, kMaxTextBytes));
  for (const NormalizerStep& step : steps_) step(text, max_bytes);
}

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  std::vector<NormalizerStep> steps;
  for (const JsonNode& step : components_of(node, "normalizers"))
    steps.push_back(make_component(kSteps, "normalizer", step));
  return std::make_unique<Normalizer>(std::move(steps));
}

}  // namespace tessera
