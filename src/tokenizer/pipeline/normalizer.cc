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

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(const JsonNode& node) {
    node.expect_keys({"type", "normalizers"});
    for (const JsonNode& part : node["normalizers"].list()) {
      if (part.is_null()) part.expected("a normalizer");
      parts_.push_back(make_normalizer(part));
    }
  }
  void run(NormalizedText* text, int64_t max_bytes) const override {
    for (const auto& part : parts_) part->run(text, max_bytes);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

// Prepends a string to non-empty text.
class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(const JsonNode& node) : prefix_(node["prepend"].string()) {
    node.expect_keys({"type", "prepend"});
  }
  void run(NormalizedText* text, int64_t max_bytes) const override {
    if (std::ssize(text->text) + std::ssize(prefix_) > max_bytes) fail_growth(max_bytes);
    if (!text->text.empty()) text->text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonNode& node)
      : pattern_(read_pattern(node["pattern"])), content_(node["content"].string()) {
    node.expect_keys({"type", "pattern", "content"});
    // Versions of Hugging Face tokenizers differ on what $1 means here.
    if (std::holds_alternative<Regex>(pattern_) && content_.find('$') != std::string::npos)
      node["content"].not_supported("replacement with a group reference", content_);
  }
  void run(NormalizedText* text, int64_t max_bytes) const override {
    if (content_.empty() && text->at_start) {
      const std::vector<TextPart> parts = divide(text->text, pattern_);
      if (!parts.empty() && parts.front().is_match) text->at_start = false;
    }
    std::optional<std::string> replaced = replace_all(text->text, pattern_, content_, max_bytes);
    if (!replaced) fail_growth(max_bytes);
    text->text = *std::move(replaced);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

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

class UnicodeNormalizer final : public Normalizer {
 public:
  UnicodeNormalizer(const JsonNode& node, const icu::Normalizer2* form) : form_(form) {
    node.expect_keys({"type"});
  }

  static const icu::Normalizer2* form(const std::string& type) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* found = type == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                    : type == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                    : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                     : icu::Normalizer2::getNFKDInstance(status);
    TESSERA_CHECK(U_SUCCESS(status), "ICU lacks the data of {}: {}", type, u_errorName(status));
    return found;
  }

  void run(NormalizedText* text, int64_t max_bytes) const override {
    if (text->text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 4) {
      fail(ExitCode::kBadData,
           "a text of {} bytes is too long for Unicode normalization (limit 512 MiB); split it",
           text->text.size());
    }
    std::string out;
    LimitedSink sink(&out, max_bytes);
    UErrorCode status = U_ZERO_ERROR;
    form_->normalizeUTF8(0, icu::StringPiece(text->text.data(), static_cast<int32_t>(text->text.size())),
                         sink, nullptr, status);
    TESSERA_CHECK(U_SUCCESS(status), "Unicode normalization failed: {}", u_errorName(status));
    if (sink.is_full()) fail_growth(max_bytes);
    text->text = std::move(out);
  }

 private:
  const icu::Normalizer2* form_;
};

// Character by character, like Rust's char::to_lowercase: no context rules (final sigma), and U+0130 is the
// only character that becomes two.
class LowercaseNormalizer final : public Normalizer {
 public:
  explicit LowercaseNormalizer(const JsonNode& node) { node.expect_keys({"type"}); }
  void run(NormalizedText* text, int64_t) const override {
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
};

class StripNormalizer final : public Normalizer {
 public:
  explicit StripNormalizer(const JsonNode& node)
      : left_(node["strip_left"].boolean()), right_(node["strip_right"].boolean()) {
    node.expect_keys({"type", "strip_left", "strip_right"});
  }
  void run(NormalizedText* text, int64_t) const override {
    std::string& value = text->text;
    size_t begin = 0;
    while (left_ && begin < value.size() && is_whitespace(decode_utf8(value.data() + begin).code_point))
      begin += static_cast<size_t>(utf8_size(value[begin]));
    size_t end = value.size();
    while (right_ && end > begin) {
      const auto last = static_cast<size_t>(last_char_begin(std::string_view(value).substr(0, end)));
      if (!is_whitespace(decode_utf8(value.data() + last).code_point)) break;
      end = last;
    }
    if (begin > 0) text->at_start = false;
    value = value.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

}  // namespace

void Normalizer::apply(NormalizedText* text) const {
  const int64_t grown = std::max(kSmallBytes, kMaxGrowth * std::ssize(text->text));
  run(text, std::max(std::ssize(text->text), std::min(grown, kMaxTextBytes)));
}

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.type();
  if (type == "Sequence") return std::make_unique<SequenceNormalizer>(node);
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(node);
  if (type == "Replace") return std::make_unique<ReplaceNormalizer>(node);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD")
    return std::make_unique<UnicodeNormalizer>(node, UnicodeNormalizer::form(type));
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>(node);
  if (type == "Strip") return std::make_unique<StripNormalizer>(node);
  node.not_supported("normalizer", type);
}

}  // namespace tessera
