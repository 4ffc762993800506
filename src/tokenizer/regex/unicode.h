// Characters as tokenizers see them: decoding of UTF-8, and the Unicode properties used in patterns
// (from ICU).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace tessera {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct DecodedChar {
  char32_t code_point;
  int64_t size_bytes;
};

// The character at the start of well-formed UTF-8 (validate with find_invalid_utf8 of base/text.h first).
inline DecodedChar decode_utf8(const char* text) {
  const auto byte = [text](int i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Size in bytes of the character that starts with `lead`, in well-formed UTF-8.
inline int64_t utf8_size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Offset of the last character of `text`, which must not be empty.
int64_t last_char_begin(std::string_view text);

// Converts arbitrary bytes to text incrementally: each maximal part of an ill-formed sequence becomes one
// U+FFFD (Unicode 15, 3.9, "substitution of maximal subparts"), as Rust's String::from_utf8_lossy does.
class LossyUtf8 {
 public:
  // Appends all complete characters; a sequence that may be incomplete is kept for the next call.
  void push(std::string_view bytes, std::string* out);
  void finish(std::string* out);

 private:
  std::string pending_;
};

// The classes that the patterns of GPT-2, Llama 3 and Qwen 2 distinguish. kSpace is White_Space without \r
// and \n.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace, kNewline };

// Two-stage table over all code points: 256 per block, equal blocks stored once (about 45 KB).
class CharClassTable {
 public:
  static const CharClassTable& get();
  CharClass operator[](char32_t code_point) const {
    return static_cast<CharClass>(blocks_[block_of_[code_point >> 8]][code_point & 0xFF]);
  }

 private:
  CharClassTable();

  std::array<uint16_t, 0x1100> block_of_;
  std::vector<std::array<uint8_t, 256>> blocks_;
};

bool is_whitespace(char32_t code_point);            // White_Space
int64_t leading_whitespace(std::string_view text);  // bytes of it
int64_t trailing_whitespace(std::string_view text);
bool is_numeric(char32_t code_point);    // N: Nd, Nl, No
bool is_word_char(char32_t code_point);  // \w of Rust's regex: Alphabetic, M, Nd, Pc, Join_Control

// Properties as of the Unicode version that tokenizers has them from, which has fewer characters than ICU's.
bool is_punctuation(char32_t code_point);      // Unicode 8: P, and the ASCII symbols
bool is_nonspacing_mark(char32_t code_point);  // Unicode 8: Mn
bool is_other(char32_t code_point);            // Unicode 8: Cc, Cf, Co
bool is_combining_mark(char32_t code_point);   // Unicode 9: M

}  // namespace tessera
