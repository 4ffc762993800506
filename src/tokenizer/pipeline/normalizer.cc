#include "tokenizer/pipeline/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/pipeline/component.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

// U+FDFA becomes 11 times as long by NFKD. A short text may grow more than that.
constexpr int64_t kMaxGrowth = 32;
constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

[[noreturn]] void fail_growth(int64_t max_bytes) {
  fail(ExitCode::kBadData,
       "the normalizer of the tokenizer makes a text longer than {}, more than {} times what it was given: "
       "look at its Replace and Prepend",
       format_bytes(max_bytes), kMaxGrowth);
}

// Prepends a string to non-empty text.
NormalizerStep prepend_step(const JsonNode& node) {
  node.expect_keys({"type", "prepend"});
  return [prefix = node["prepend"].string()](NormalizedText* text, int64_t max_bytes) {
    if (std::ssize(text->text) + std::ssize(prefix) > max_bytes) fail_growth(max_bytes);
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
    if (!replaced) fail_growth(max_bytes);
    text->text = *std::move(replaced);
  };
}

// Drops what would make the text longer than max_bytes.
class LimitedSink final : public icu::ByteSink {
 public:
  LimitedSink(std::string* out, int64_t max_bytes) : out_(out), max_bytes_(max_bytes) {}
  void Append(const char* bytes, int32_t count) override {
    is_full_ = is_full_ || std::ssize(*out_) + count > max_bytes_;
    if (!is_full_) out_->append(bytes, static_cast<size_t>(count));
  }
  bool is_full() const { return is_full_; }

 private:
  std::string* out_;
  int64_t max_bytes_;
  bool is_full_ = false;
};

// A normalization form; `instance` gives ICU's implementation of it.
template <const icu::Normalizer2* (*instance)(UErrorCode&)>
NormalizerStep unicode_step(const JsonNode& node) {
  node.expect_keys({"type"});
  UErrorCode found = U_ZERO_ERROR;
  const icu::Normalizer2* const form = instance(found);
  TESSERA_CHECK(U_SUCCESS(found), "ICU lacks the data of a normalization: {}", u_errorName(found));
  return [form](NormalizedText* text, int64_t max_bytes) {
    if (text->text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 4) {
      fail(ExitCode::kBadData,
           "a text of {} bytes is too long for Unicode normalization (limit 512 MiB); split it",
           text->text.size());
    }
    std::string out;
    LimitedSink sink(&out, max_bytes);
    UErrorCode status = U_ZERO_ERROR;
    form->normalizeUTF8(0, icu::StringPiece(text->text.data(), static_cast<int32_t>(text->text.size())), sink,
                        nullptr, status);
    TESSERA_CHECK(U_SUCCESS(status), "Unicode normalization failed: {}", u_errorName(status));
    if (sink.is_full()) fail_growth(max_bytes);
    text->text = std::move(out);
  };
}

// Character by character, like Rust's char::to_lowercase: no context rules (final sigma), and U+0130 is the
// only character that becomes two.
void lower_text(NormalizedText* text, int64_t) {
  std::string out;
  out.reserve(text->text.size());
  const std::string& from = text->text;
  for (size_t at = 0; at < from.size();) {
    const auto [code_point, size_bytes] = decode_utf8(from.data() + at);
    if (code_point == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(code_point))), &out);
    }
    at += static_cast<size_t>(size_bytes);
  }
  text->text = std::move(out);
}

NormalizerStep lowercase_step(const JsonNode& node) {
  node.expect_keys({"type"});
  return lower_text;
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

constexpr std::pair<std::string_view, NormalizerStep (*)(const JsonNode&)> kSteps[] = {
    {"Lowercase", lowercase_step},
    {"NFC", unicode_step<icu::Normalizer2::getNFCInstance>},
    {"NFD", unicode_step<icu::Normalizer2::getNFDInstance>},
    {"NFKC", unicode_step<icu::Normalizer2::getNFKCInstance>},
    {"NFKD", unicode_step<icu::Normalizer2::getNFKDInstance>},
    {"Prepend", prepend_step},
    {"Replace", replace_step},
    {"Strip", strip_step},
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
