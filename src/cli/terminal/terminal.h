// Standard output and the terminal: checked writes, a status line that is redrawn in place, what the terminal
// can show.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

// Width of a line that is redrawn, and of tables.
inline constexpr int64_t kMaxLineColumns = 80;
// Between lines of progress where none can be redrawn.
inline constexpr std::chrono::seconds kPlainLineInterval{10};

// Writes to standard output (visible_text): what comes from files and peers cannot control the terminal. A
// failure (full disk, closed descriptor) is an Error(kIoError). Buffered when standard output is not a
// terminal. Clears a status line first.
void write_output(std::string_view text);
// Like write_output(), for the result of a model or a tokenizer: bytes are unchanged, except on a terminal.
void write_result(std::string_view text);
// Like write_output(), for text made of visible_text() and our own colours.
void write_coloured(std::string_view text);
void flush_output();
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// A closed reader (`tessera ... | head`) either ends the program quietly by SIGPIPE or is ignored.
enum class ClosedOutput { kEndsProgram, kIsIgnored };
// kIsIgnored drops output once the reader is gone or, with a warning, a write fails: a training run outlives
// its log.
void set_closed_output(ClosedOutput behaviour);

bool output_is_terminal();
// True if standard error is a terminal on which a line can be redrawn, unless --quiet hides it.
bool error_shows_status();
void hide_status_lines();
// True if it also takes colours.
bool error_takes_colours();
// Columns of the terminal on standard output or standard error, at least 40; 80 if neither is one.
int64_t terminal_width();
// True if the locale's character encoding is UTF-8.
bool terminal_is_utf8();

// Breaks text at spaces into lines of at most `width` columns, each indented by `indent` spaces; "\n" starts
// a new line.
std::string wrap_text(std::string_view text, int64_t indent, int64_t width);

// A bar of `columns` columns, of which `fraction` (0 to 1) is full.
std::string bar_text(double fraction, int64_t columns, bool utf8);

// A line on standard error that is redrawn in place; only one exists at a time. Nothing is drawn unless
// error_shows_status(). Log lines, output and an interrupt clear it first, so that the terminal is
// left clean.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows `text`, truncated to the terminal's width; at most twenty times a second.
  void show(const std::string& text);
  // "what: 40 % 1.2 GB/s", without a speed that is 0.
  void show(const std::string& what, double fraction, double bytes_per_second = 0);
  void clear();

 private:
  std::chrono::steady_clock::time_point last_shown_;
};

// Clears the status line if one is shown; async-signal-safe.
void clear_status_line();

// Clears the cursor's line if error_shows_status(): it may hold the remains of a killed child's status line.
void clear_line_of_child();

// Opens /dev/null for standard descriptors that are closed, so that no file opened later gets their numbers
// and with them the program's output. Writing to a closed standard output remains an error.
void protect_standard_descriptors();

// Ends this process by the signal, so that a calling shell script stops as well. The first process of a
// container, which signals do not end by default, exits with 128 + signal. Clears the status line;
// async-signal-safe.
[[noreturn]] void end_by_signal(int signal_number);

// Makes SIGINT and SIGTERM clear the status line before they end the program.
void install_terminal_cleanup();

}  // namespace tessera
