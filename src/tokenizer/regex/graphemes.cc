#include "tokenizer/regex/graphemes.h"

#include <unicode/uchar.h>

#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

UGraphemeClusterBreak break_of(char32_t code_point) {
  return static_cast<UGraphemeClusterBreak>(
      u_getIntPropertyValue(static_cast<UChar32>(code_point), UCHAR_GRAPHEME_CLUSTER_BREAK));
}

bool is_control(UGraphemeClusterBreak kind) {
  return kind == U_GCB_CONTROL || kind == U_GCB_CR || kind == U_GCB_LF;
}

bool is_pictograph(char32_t code_point) {
  return u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_EXTENDED_PICTOGRAPHIC) != 0;
}

// GB6 to GB8: a Hangul syllable.
bool continues_syllable(UGraphemeClusterBreak before, UGraphemeClusterBreak after) {
  switch (before) {
    case U_GCB_L:
      return after == U_GCB_L || after == U_GCB_V || after == U_GCB_LV || after == U_GCB_LVT;
    case U_GCB_LV:
    case U_GCB_V:
      return after == U_GCB_V || after == U_GCB_T;
    case U_GCB_LVT:
    case U_GCB_T:
      return after == U_GCB_T;
    default:
      return false;
  }
}

}  // namespace

int64_t grapheme_size(std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t at = utf8_size(text[0]);
  const auto is_plain = [&](int64_t i) {
    const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(i)]);
    return byte < 0x80 && byte != '\n';
  };
  if (at == 1 && (at == size || is_plain(at))) return at;
  char32_t code_point = decode_utf8(text.data()).code_point;
  UGraphemeClusterBreak before = break_of(code_point);
  bool is_emoji = is_pictograph(code_point);          // a pictograph and its modifiers so far, for GB11
  bool is_flag = before == U_GCB_REGIONAL_INDICATOR;  // an odd number of regional indicators, for GB12
  while (at < size) {
    const DecodedChar next = decode_utf8(text.data() + at);
    const UGraphemeClusterBreak after = break_of(next.code_point);
    const bool joins_flag = is_flag && after == U_GCB_REGIONAL_INDICATOR;
    const bool joins_emoji = is_emoji && before == U_GCB_ZWJ && is_pictograph(next.code_point);
    const bool extends = after == U_GCB_EXTEND || after == U_GCB_ZWJ || after == U_GCB_SPACING_MARK;
    bool joins =
        extends || before == U_GCB_PREPEND || continues_syllable(before, after) || joins_flag || joins_emoji;
    if (before == U_GCB_CR && after == U_GCB_LF) {
      joins = true;
    } else if (is_control(before) || is_control(after)) {
      joins = false;
    }
    if (!joins) break;
    is_flag = after == U_GCB_REGIONAL_INDICATOR && !joins_flag;
    is_emoji = is_pictograph(next.code_point) || (is_emoji && (after == U_GCB_EXTEND || after == U_GCB_ZWJ));
    before = after;
    at += next.size_bytes;
  }
  return at;
}

}  // namespace tessera
