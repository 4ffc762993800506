// Text of any origin for a terminal, a log or a report, where it must neither move the cursor nor change the
// order in which it is read.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Control characters but newline and tab, and malformed bytes, become \xNN; from U+007F on also the
// characters that control the line or its direction, as \uNNNN (U+007F-9F, U+061C, U+200E-F, U+2028-E,
// U+2066-9). JSON remains the same JSON.
std::string visible_text(std::string_view text);
// The same for one line: newline and tab are control characters, too. printable() in text.h also cuts it.
std::string visible_line(std::string_view text);

}  // namespace tessera
