// UTF-8 strings as Python's str: sequences of code points. Bytes that are not UTF-8 count as characters of
// their own and are never read past the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"

namespace tessera::jinja {

bool is_ascii(std::string_view text);
int64_t count_code_points(std::string_view text);
// Decodes the character at `pos` and moves `pos` past it. pos < text.size().
char32_t next_code_point(std::string_view text, size_t& pos);
// Where the character with this index begins; text.size() if there are no more.
size_t byte_offset(std::string_view text, int64_t index);

// The position of `sub` in `text` at or after `from`; npos if there is none. In linear time, unlike
// std::string_view::find.
size_t find_text(std::string_view text, std::string_view sub, size_t from = 0);

enum class Side : uint8_t { kLeft, kRight, kBoth };

bool is_space(char32_t code_point);
// Python's str.strip, lstrip, rstrip without arguments, and with a set of characters.
std::string_view strip(std::string_view text, Side side);
std::string_view strip(std::string_view text, std::string_view characters, Side side);
// Whether the character at `pos` (which is moved past it) ends a line for str.splitlines; \r\n counts as one.
bool take_line_break(std::string_view text, size_t& pos);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string case_fold(std::string_view text);
std::string swap_case(std::string_view text);
std::string capitalize(std::string_view text);
std::string to_title(std::string_view text);  // str.title

// str.isalpha and its like, for a character.
bool is_alpha(char32_t code_point);
bool is_decimal(char32_t code_point);
bool is_digit_character(char32_t code_point);
bool is_numeric(char32_t code_point);
bool is_printable(char32_t code_point);
bool is_upper_case(char32_t code_point);
bool is_lower_case(char32_t code_point);
bool is_title_case(char32_t code_point);
bool is_identifier_start(char32_t code_point);
bool is_identifier_part(char32_t code_point);

}  // namespace tessera::jinja
