// The UTF-8 byte order mark that some editors put at the beginning of a text file.
#pragma once

#include <string_view>

namespace tessera {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace tessera
