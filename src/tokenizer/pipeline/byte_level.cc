#include "tokenizer/pipeline/byte_level.h"

#include <array>

#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

constexpr char32_t kNumChars = 0x100 + 68;

struct Alphabet {
  std::array<char32_t, 256> char_of;
  std::array<int16_t, kNumChars> byte_of;
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet{};
  alphabet.byte_of.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    const char32_t symbol = printable ? static_cast<char32_t>(byte) : next++;
    alphabet.char_of[static_cast<size_t>(byte)] = symbol;
    alphabet.byte_of[symbol] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_level_char(uint8_t byte) { return kAlphabet.char_of[byte]; }

std::string byte_level_encode(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) append_utf8(byte_level_char(static_cast<uint8_t>(c)), &out);
  return out;
}

std::optional<std::string> byte_level_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto [code_point, size_bytes] = decode_utf8(text.data());
    if (code_point >= kNumChars || kAlphabet.byte_of[code_point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.byte_of[code_point]));
    text.remove_prefix(static_cast<size_t>(size_bytes));
  }
  return out;
}

}  // namespace tessera
