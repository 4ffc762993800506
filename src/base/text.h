// Small text helpers shared by error messages and reports, and texts of any origin made fit to be shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// "1.50 GiB", "17.2 MiB", "320 B".
std::string format_bytes(int64_t size_bytes);

// Parses "64GiB", "1.5 TB", "512M" or "4096B" into bytes: K, M, G, T with optional B or iB, in any case; KB
// is 1000, K and KiB are 1024. A number without a unit counts as bytes only from one million up: someone who
// writes 64 does not mean 64 bytes. nullopt for anything else and for sizes that are not positive.
std::optional<int64_t> parse_bytes(std::string_view text);

// The exact size in the largest unit that divides it: "24GiB", "200MB", "1001B".
std::string size_text(int64_t size_bytes);

// "1,234,567".
std::string format_count(int64_t count);

// "0a1b": two lower-case digits for each byte.
std::string hex(std::string_view bytes);

// A count with its noun: "1 row", "4096 rows". For every count in a message that may be 1.
std::string count_of(int64_t count, std::string_view noun);
// The form for reports: "1 row", "4,096 rows".
std::string format_count(int64_t count, std::string_view noun);

// ASCII letters in lower case, other bytes as they are.
std::string lower_case(std::string text);

// "1:02:03" or "02:03".
std::string format_duration(double seconds);

// Levenshtein distance in bytes, counting a swap of two adjacent bytes as one edit.
int64_t edit_distance(std::string_view a, std::string_view b);

// `text` as one word of a POSIX shell command line: unchanged if safe, otherwise in single quotes.
std::string shell_quoted(std::string_view text);

// True when `text` is well-formed UTF-8 (no overlong forms, surrogates or code points above U+10FFFF).
bool is_valid_utf8(std::string_view text);

// Offset of the first byte that does not start a well-formed UTF-8 sequence; -1 if there is none.
int64_t find_invalid_utf8(std::string_view text);

// One printable line for messages: control characters and malformed bytes as \xNN, cut to about max_chars
// with "...".
std::string printable(std::string_view text, int64_t max_chars = 80);

// The parts between separators; at least one.
std::vector<std::string> split(std::string_view text, char separator);
// The whole text as a decimal number; nullopt if it is not one.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

// Unicode code points: the bytes that do not continue a character.
int64_t count_characters(std::string_view utf8);
void append_utf8(char32_t code_point, std::string* out);

// The time left: "01:23", "1:02:03", "4d 04h"; "--:--" if it is not known.
std::string format_eta(const std::optional<double>& seconds);

// Control characters but newline and tab, and malformed bytes, become \xNN; from U+007F on also the
// characters that control the line or its direction, as \uNNNN (U+007F-9F, U+061C, U+200E-F, U+2028-E,
// U+2066-9). JSON remains the same JSON.
std::string visible_text(std::string_view text);
// Like visible_text(), for one line: escapes newline and tab, too. printable() in text.h also cuts it.
std::string visible_line(std::string_view text);

}  // namespace tessera
