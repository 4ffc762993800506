// Characters of UTF-8 text.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Unicode code points: the bytes that do not continue a character.
int64_t count_characters(std::string_view utf8);

}  // namespace tessera
