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

// Writes to standard output; a failure (full disk, closed descriptor) is an Error(kIoError). Buffered when
// standard output is not a terminal. Clears a status line first.
void write_output(std::string_view text);
void flush_output();
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// How a closed reader (`tessera ... | head`) ends the program: quietly by SIGPIPE, or not at all.
enum class ClosedOutput { kEndsProgram, kIsIgnored };
// kIsIgnored drops what is written after the reader is gone: a training run outlives its log.
void set_closed_output(ClosedOutput behaviour);

bool output_is_terminal();
// Standard error is a terminal on which a line can be redrawn.
bool error_shows_status();
// Columns of the terminal on standard output or standard error, at least 40; 80 when neither is one.
int64_t terminal_width();
// True when the locale's character encoding is UTF-8.
bool terminal_is_utf8();

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

  // Shows `text`, cut to the width of the terminal; at most twenty times a second.
  void show(const std::string& text);
  void clear();

 private:
  std::chrono::steady_clock::time_point last_shown_;
};

// Clears the status line if one is shown; async-signal-safe.
void clear_status_line();

// Clears the line of the cursor when error_shows_status(): what a killed child may have left of its
// status line.
void clear_line_of_child();

// Puts /dev/null in the place of standard descriptors that are closed, so that no file that is opened later
// gets their numbers and what is printed with them. Writing to a closed standard output stays an error.
void protect_standard_descriptors();

// Ends this process by the signal, which tells a shell script to stop, too. The first process of a container,
// which no signal ends by itself, exits with 128 + signal. Clears the status line; async-signal-safe.
[[noreturn]] void end_by_signal(int signal_number);

// Makes SIGINT and SIGTERM clear the status line before they end the program.
void install_terminal_cleanup();

}  // namespace tessera
