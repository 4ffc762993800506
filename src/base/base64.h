// Base64 (RFC 4648), in its standard and its URL-safe alphabet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// The bytes that `text` encodes, with or without padding; nullopt if it has another character.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tessera
