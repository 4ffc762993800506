#include "base/utf8.h"

#include <algorithm>

namespace tessera {

int64_t count_characters(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace tessera
