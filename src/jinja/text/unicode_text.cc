#include "jinja/text/unicode_text.h"

#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace tessera::jinja {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

using CaseMapping = int32_t (*)(const UCaseMap*, char*, int32_t, const char*, int32_t, UErrorCode*);

const UCaseMap* case_map() {
  static const std::unique_ptr<UCaseMap, decltype(&ucasemap_close)> map = [] {
    UErrorCode status = U_ZERO_ERROR;
    return std::unique_ptr<UCaseMap, decltype(&ucasemap_close)>(ucasemap_open("", 0, &status),
                                                                ucasemap_close);
  }();
  return map.get();
}

// Full case mapping. Text too long for ICU's 32-bit sizes keeps its case where it is not ASCII.
std::string mapped(std::string_view text, CaseMapping mapping, int (*ascii)(int)) {
  std::string out(text);
  constexpr size_t kMaxBytes = size_t{1} << 29;  // a character grows at most threefold
  if (is_ascii(text) || text.size() > kMaxBytes) {
    for (char& c : out) {
      if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(ascii(c));
    }
    return out;
  }
  UErrorCode status = U_ZERO_ERROR;
  const auto size = static_cast<int32_t>(text.size());
  int32_t needed = mapping(case_map(), out.data(), size, text.data(), size, &status);
  if (status == U_BUFFER_OVERFLOW_ERROR) {
    status = U_ZERO_ERROR;
    out.resize(static_cast<size_t>(needed));
    needed = mapping(case_map(), out.data(), needed, text.data(), size, &status);
  }
  out.resize(static_cast<size_t>(needed));
  return out;
}

// The first character in title case, in full ("\uFB01n" gives "Fin"), and the others in lower case.
int32_t to_title_as_a_whole(const UCaseMap*, char* out, int32_t capacity, const char* text, int32_t size,
                            UErrorCode* status) {
  thread_local const std::unique_ptr<UCaseMap, decltype(&ucasemap_close)> map = [] {
    UErrorCode opened = U_ZERO_ERROR;
    constexpr uint32_t kOptions = U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT;
    return std::unique_ptr<UCaseMap, decltype(&ucasemap_close)>(ucasemap_open("", kOptions, &opened),
                                                                ucasemap_close);
  }();
  return ucasemap_utf8ToTitle(map.get(), out, capacity, text, size, status);
}

int ascii_upper(int c) { return c >= 'a' && c <= 'z' ? c - 32 : c; }
int ascii_lower(int c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

bool is_cased(char32_t c) { return is_upper_case(c) || is_lower_case(c) || is_title_case(c); }

// The lower case of the character text[begin, end), where a capital sigma at the end of a word differs.
std::string lower_in_context(std::string_view text, size_t begin, size_t end) {
  constexpr std::string_view kSigma = "Σ";
  constexpr std::string_view kFinalSigma = "ς";
  const std::string_view one = text.substr(begin, end - begin);
  if (one != kSigma) return to_lower(one);
  const auto is_ignorable = [](char32_t c) {
    return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASE_IGNORABLE) != 0;
  };
  bool cased_before = false;
  for (size_t end_before = begin; end_before > 0;) {
    size_t pos = end_before - 1;
    while (pos > 0 && is_continuation(text[pos])) --pos;
    end_before = pos;
    const char32_t c = next_code_point(text, pos);
    if (is_ignorable(c)) continue;
    cased_before = is_cased(c);
    break;
  }
  bool cased_after = false;
  for (size_t pos = end; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (is_ignorable(c)) continue;
    cased_after = is_cased(c);
    break;
  }
  return cased_before && !cased_after ? std::string(kFinalSigma) : to_lower(one);
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

char32_t next_code_point(std::string_view text, size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos++]);
  if (lead < 0x80) return lead;
  char32_t value = lead < 0xE0 ? lead & 0x1F : lead < 0xF0 ? lead & 0x0F : lead & 0x07;
  while (pos < text.size() && is_continuation(text[pos])) {
    value = (value << 6 | (static_cast<unsigned char>(text[pos++]) & 0x3F)) & 0x1FFFFF;
  }
  return value;
}

size_t byte_offset(std::string_view text, int64_t index) {
  size_t pos = 0;
  for (; pos < text.size(); ++pos) {
    if (!is_continuation(text[pos]) && index-- == 0) return pos;
  }
  return pos;
}

size_t find_text(std::string_view text, std::string_view sub, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (sub.empty()) return from;
  const void* at = memmem(text.data() + from, text.size() - from, sub.data(), sub.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

template <typename Predicate>
std::string_view strip_if(std::string_view text, Side side, const Predicate& drops) {
  size_t begin = 0;
  while (side != Side::kRight && begin < text.size()) {
    size_t next = begin;
    if (!drops(next_code_point(text, next))) break;
    begin = next;
  }
  size_t end = text.size();
  while (side != Side::kLeft && end > begin) {
    size_t last = end - 1;
    while (last > begin && is_continuation(text[last])) --last;
    size_t next = last;
    if (!drops(next_code_point(text.substr(0, end), next))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip(std::string_view text, std::string_view characters, Side side) {
  std::vector<char32_t> dropped;
  for (size_t pos = 0; pos < characters.size();) dropped.push_back(next_code_point(characters, pos));
  std::sort(dropped.begin(), dropped.end());
  return strip_if(text, side,
                  [&](char32_t c) { return std::binary_search(dropped.begin(), dropped.end(), c); });
}

bool take_line_break(std::string_view text, size_t& pos) {
  const char32_t c = next_code_point(text, pos);
  if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::string to_upper(std::string_view text) { return mapped(text, ucasemap_utf8ToUpper, ascii_upper); }
std::string to_lower(std::string_view text) { return mapped(text, ucasemap_utf8ToLower, ascii_lower); }
std::string case_fold(std::string_view text) { return mapped(text, ucasemap_utf8FoldCase, ascii_lower); }

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    const std::string_view one = text.substr(begin, pos - begin);
    out += is_upper_case(c)   ? lower_in_context(text, begin, pos)
           : is_lower_case(c) ? to_upper(one)
                              : std::string(one);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out = mapped(text, to_title_as_a_whole, ascii_lower);
  if (is_ascii(text) && !out.empty()) out[0] = static_cast<char>(ascii_upper(out[0]));
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(text, pos);
    if (in_word) {
      out += lower_in_context(text, begin, pos);
    } else {
      out += capitalize(text.substr(begin, pos - begin));
    }
    in_word = is_cased(c);
  }
  return out;
}

bool is_alpha(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }
bool is_decimal(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER; }
bool is_digit_character(char32_t c) {
  const auto type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}
bool is_numeric(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool is_printable(char32_t c) {
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}
bool is_upper_case(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0; }
bool is_lower_case(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0; }
bool is_title_case(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_TITLECASE_LETTER; }
bool is_identifier_start(char32_t c) {
  return c == '_' || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_START) != 0;
}
bool is_identifier_part(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_CONTINUE) != 0;
}

}  // namespace tessera::jinja
