// The alphabet of byte-level BPE: every byte has a printable character (GPT-2, Radford et al., 2019).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves; the other 68 bytes, in order, are
// U+0100...
char32_t byte_level_char(uint8_t byte);

// Bytes in the alphabet's characters (UTF-8).
std::string byte_level_encode(std::string_view bytes);

// The inverse; nullopt if a character is not in the alphabet. `text` must be well-formed UTF-8.
std::optional<std::string> byte_level_decode(std::string_view text);

}  // namespace tessera
