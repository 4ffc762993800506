#include "tokenizer/regex/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "base/text.h"

namespace tessera {
namespace {

// Length of the incomplete character at the start of `text`: 0 < result < the length given by the lead byte
// if the text is a proper prefix of a well-formed sequence, else 0.
int64_t unfinished_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  size_t good = length == 0 ? 0 : 1;
  while (good > 0 && good < length && good < text.size() && byte(good) >= low && byte(good) <= high) {
    ++good;
    low = 0x80;
    high = 0xBF;
  }
  return good < length ? static_cast<int64_t>(good) : 0;
}

bool has_property(char32_t code_point, uint32_t category_mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & category_mask) != 0;
}

// Whether a character is in that version of Unicode.
bool is_in_version(char32_t code_point, int version) {
  UVersionInfo added;
  u_charAge(static_cast<UChar32>(code_point), added);
  return added[0] > 0 && (added[0] < version || (added[0] == version && added[1] == 0));
}

}  // namespace

int64_t last_char_begin(std::string_view text) {
  auto at = static_cast<int64_t>(text.size()) - 1;
  while (at > 0 && (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) == 0x80) --at;
  return at;
}

void LossyUtf8::push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    pending_.clear();
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const int64_t invalid = find_invalid_utf8(bytes);
    if (invalid < 0) {
      out->append(bytes);
      return;
    }
    out->append(bytes.substr(0, static_cast<size_t>(invalid)));
    bytes.remove_prefix(static_cast<size_t>(invalid));
    const int64_t unfinished = unfinished_length(bytes);
    if (unfinished == static_cast<int64_t>(bytes.size())) {
      pending_ = bytes;
      return;
    }
    out->append(kReplacement);
    bytes.remove_prefix(static_cast<size_t>(std::max<int64_t>(unfinished, 1)));
  }
}

void LossyUtf8::finish(std::string* out) {
  if (!pending_.empty()) out->append(kReplacement);
  pending_.clear();
}

const CharClassTable& CharClassTable::get() {
  static const CharClassTable table;
  return table;
}

CharClassTable::CharClassTable() {
  for (size_t block = 0; block < block_of_.size(); ++block) {
    std::array<uint8_t, 256> classes;
    for (size_t i = 0; i < classes.size(); ++i) {
      const auto code_point = static_cast<char32_t>(block * 256 + i);
      CharClass found = CharClass::kOther;
      if (code_point == '\r' || code_point == '\n') {
        found = CharClass::kNewline;
      } else if (has_property(code_point, U_GC_L_MASK)) {
        found = CharClass::kLetter;
      } else if (has_property(code_point, U_GC_N_MASK)) {
        found = CharClass::kNumber;
      } else if (is_whitespace(code_point)) {
        found = CharClass::kSpace;
      }
      classes[i] = static_cast<uint8_t>(found);
    }
    auto same = std::find(blocks_.begin(), blocks_.end(), classes);
    if (same == blocks_.end()) same = blocks_.insert(blocks_.end(), classes);
    block_of_[block] = static_cast<uint16_t>(same - blocks_.begin());
  }
}

bool is_whitespace(char32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  return u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_WHITE_SPACE) != 0;
}

int64_t leading_whitespace(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_whitespace(decode_utf8(text.data() + at).code_point))
    at += static_cast<size_t>(utf8_size(text[at]));
  return static_cast<int64_t>(at);
}

int64_t trailing_whitespace(std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const auto last = static_cast<size_t>(last_char_begin(text));
    if (!is_whitespace(decode_utf8(text.data() + last).code_point)) break;
    text = text.substr(0, last);
  }
  return static_cast<int64_t>(size - text.size());
}

bool is_numeric(char32_t code_point) { return has_property(code_point, U_GC_N_MASK); }

// The characters named below have had another category since.
bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= '!' && code_point <= '/') || (code_point >= ':' && code_point <= '@') ||
           (code_point >= '[' && code_point <= '`') || (code_point >= '{' && code_point <= '~');
  }
  if (code_point == 0x166D) return true;
  return code_point != 0x111C9 && has_property(code_point, U_GC_P_MASK) && is_in_version(code_point, 8);
}

bool is_nonspacing_mark(char32_t code_point) {
  if (code_point < 0x80) return false;
  if (code_point == 0x1734) return true;
  const bool is_later =
      code_point == 0x1885 || code_point == 0x1886 || code_point == 0xA9BD || code_point == 0x111C9;
  return !is_later && has_property(code_point, U_GC_MN_MASK) && is_in_version(code_point, 8);
}

bool is_other(char32_t code_point) {
  if (code_point < 0x80) return code_point < 0x20 || code_point == 0x7F;
  return has_property(code_point, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK) && is_in_version(code_point, 8);
}

bool is_combining_mark(char32_t code_point) {
  if (code_point < 0x80) return false;
  if (code_point == 0x1CF2 || code_point == 0x1CF3) return true;
  return code_point != 0x111C9 && has_property(code_point, U_GC_M_MASK) && is_in_version(code_point, 9);
}

bool is_word_char(char32_t code_point) {
  return has_property(code_point, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_JOIN_CONTROL) != 0;
}

}  // namespace tessera
