#include "tokenizer/pipeline/normalizer_steps.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

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

// The characters of a pattern.
icu::UnicodeSet character_set(const char16_t* pattern) {
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeSet set(pattern, status);
  TESSERA_CHECK(U_SUCCESS(status), "ICU does not know a set of characters: {}", u_errorName(status));
  set.freeze();
  return set;
}

const icu::UnicodeSet& unicode_9() {
  static const icu::UnicodeSet set = character_set(u"[:age=9.0:]");
  return set;
}

// Later characters that a normalization form changes or moves.
const icu::UnicodeSet& later_than_unicode_9() {
  static const icu::UnicodeSet set =
      character_set(u"[[:^age=9.0:]&[[:^ccc=0:][:NFKD_QC=No:][:NFKC_QC=Maybe:]]]");
  return set;
}

// A normalization form, of ICU's version of Unicode and of Unicode 9.
class UnicodeForm {
 public:
  using Instance = const icu::Normalizer2* (*)(UErrorCode&);
  explicit UnicodeForm(Instance instance)
      : latest_(checked(instance)),
        unicode_9_(std::make_shared<icu::FilteredNormalizer2>(*latest_, unicode_9())) {}

  void apply(NormalizedText* text, int64_t max_bytes) const {
    if (std::ranges::all_of(text->text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return;
    if (text->text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 4) {
      fail(ExitCode::kBadData,
           "a text of {} bytes is too long for Unicode normalization (limit 512 MiB); split it",
           text->text.size());
    }
    const auto size = static_cast<int32_t>(text->text.size());
    const char* bytes = text->text.data();
    const bool is_old = later_than_unicode_9().spanUTF8(bytes, size, USET_SPAN_NOT_CONTAINED) == size;
    const icu::Normalizer2* form = is_old ? latest_ : unicode_9_.get();
    std::string out;
    LimitedSink sink(&out, max_bytes);
    UErrorCode status = U_ZERO_ERROR;
    form->normalizeUTF8(0, icu::StringPiece(bytes, size), sink, nullptr, status);
    TESSERA_CHECK(U_SUCCESS(status), "Unicode normalization failed: {}", u_errorName(status));
    if (sink.is_full()) fail_normalized_growth(max_bytes);
    text->text = std::move(out);
  }

 private:
  static const icu::Normalizer2* checked(Instance instance) {
    UErrorCode found = U_ZERO_ERROR;
    const icu::Normalizer2* form = instance(found);
    TESSERA_CHECK(U_SUCCESS(found), "ICU lacks the data of a normalization: {}", u_errorName(found));
    return form;
  }

  const icu::Normalizer2* latest_;
  std::shared_ptr<const icu::FilteredNormalizer2> unicode_9_;
};

constexpr char32_t kGone = 0xFFFFFFFF;

// Replaces every character by map(c); kGone takes it away.
template <typename Map>
void map_chars(NormalizedText* text, const Map& map) {
  std::string out;
  out.reserve(text->text.size());
  const std::string& from = text->text;
  for (size_t at = 0; at < from.size();) {
    const auto [code_point, size_bytes] = decode_utf8(from.data() + at);
    const char32_t mapped = map(code_point);
    if (mapped < 0x80) {
      out += static_cast<char>(mapped);
    } else if (mapped != kGone) {
      append_utf8(mapped, &out);
    } else if (at == 0) {
      text->at_start = false;
    }
    at += static_cast<size_t>(size_bytes);
  }
  text->text = std::move(out);
}

// U+0130 is the only character that becomes two.
void lower_text(NormalizedText* text) {
  std::string out;
  out.reserve(text->text.size());
  const std::string& from = text->text;
  for (size_t at = 0; at < from.size();) {
    const auto [code_point, size_bytes] = decode_utf8(from.data() + at);
    if (code_point < 0x80) {
      out += static_cast<char>(code_point >= 'A' && code_point <= 'Z' ? code_point + 0x20 : code_point);
    } else if (code_point == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(code_point))), &out);
    }
    at += static_cast<size_t>(size_bytes);
  }
  text->text = std::move(out);
}

char32_t nmt_char(char32_t c) {
  const bool goes = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
                    c == 0x8F || c == 0x9F;
  if (goes) return kGone;
  const bool is_space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  return is_space ? U' ' : c;
}

char32_t clean_char(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return U' ';
  if (c == 0 || c == 0xFFFD || is_other(c)) return kGone;
  return is_whitespace(c) ? U' ' : c;
}

// The blocks that BERT lists, without kana and Hangul.
bool is_cjk_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void space_ideographs(NormalizedText* text, int64_t max_bytes) {
  std::string out;
  out.reserve(text->text.size());
  const std::string_view from = text->text;
  for (size_t at = 0; at < from.size();) {
    const auto [code_point, size_bytes] = decode_utf8(from.data() + at);
    const bool is_spaced = is_cjk_ideograph(code_point);
    if (is_spaced) out += ' ';
    out += from.substr(at, static_cast<size_t>(size_bytes));
    if (is_spaced) out += ' ';
    at += static_cast<size_t>(size_bytes);
  }
  if (std::ssize(out) > max_bytes) fail_normalized_growth(max_bytes);
  text->text = std::move(out);
}

}  // namespace

void fail_normalized_growth(int64_t max_bytes) {
  fail(ExitCode::kBadData,
       "the normalizer of the tokenizer makes a text longer than {}, more than {} times what it was given: "
       "look at its Replace and Prepend",
       format_bytes(max_bytes), kMaxNormalizedGrowth);
}

NormalizerStep unicode_form_step(const JsonNode& node) {
  node.expect_keys({"type"});
  const std::string& type = node.type();
  const UnicodeForm form(type == "NFC"    ? icu::Normalizer2::getNFCInstance
                         : type == "NFD"  ? icu::Normalizer2::getNFDInstance
                         : type == "NFKC" ? icu::Normalizer2::getNFKCInstance
                                          : icu::Normalizer2::getNFKDInstance);
  return [form](NormalizedText* text, int64_t max_bytes) { form.apply(text, max_bytes); };
}

NormalizerStep lowercase_step(const JsonNode& node) {
  node.expect_keys({"type"});
  return [](NormalizedText* text, int64_t) { lower_text(text); };
}

NormalizerStep strip_accents_step(const JsonNode& node) {
  node.expect_keys({"type"});
  return [](NormalizedText* text, int64_t) {
    map_chars(text, [](char32_t c) { return is_combining_mark(c) ? kGone : c; });
  };
}

NormalizerStep nmt_step(const JsonNode& node) {
  node.expect_keys({"type"});
  return [](NormalizedText* text, int64_t) { map_chars(text, nmt_char); };
}

NormalizerStep bert_normalizer_step(const JsonNode& node) {
  node.expect_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lowers = node["lowercase"].boolean();
  return [form = UnicodeForm(icu::Normalizer2::getNFDInstance), lowers, cleans = node["clean_text"].boolean(),
          spaces = node["handle_chinese_chars"].boolean(),
          strips = node["strip_accents"].boolean_or(lowers)](NormalizedText* text, int64_t max_bytes) {
    if (cleans) map_chars(text, clean_char);
    if (spaces) space_ideographs(text, max_bytes);
    if (strips) {
      form.apply(text, max_bytes);
      map_chars(text, [](char32_t c) { return is_nonspacing_mark(c) ? kGone : c; });
    }
    if (lowers) lower_text(text);
  };
}

}  // namespace tessera
