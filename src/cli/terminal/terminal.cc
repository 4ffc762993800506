#include "cli/terminal/terminal.h"

#include <fcntl.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kDefaultColumns = 80;
constexpr int64_t kMinColumns = 40;
constexpr std::chrono::milliseconds kRedrawInterval{50};
constexpr std::string_view kClearLine = "\r\x1b[K";

std::atomic<bool> status_is_shown{false};
bool status_is_hidden = false;
bool is_output_given_up = false;
ClosedOutput closed_output = ClosedOutput::kEndsProgram;

// Bytes of the colour sequence that `text` begins with; 0 = it begins with none.
size_t colour_bytes(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

// At most `count` code points, visible, and every colour sequence.
std::string first_characters(std::string_view text, int64_t count) {
  std::string out;
  while (!text.empty()) {
    size_t size = colour_bytes(text);
    if (size > 0) {
      out += text.substr(0, size);
    } else {
      for (size = 1; size < text.size() && (text[size] & 0xC0) == 0x80;) ++size;
      if (--count >= 0) out += visible_line(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  return out;
}

[[noreturn]] void fail_output(int error) {
  // End like any program whose reader, such as `head`, has closed the pipe.
  if (error == EPIPE) end_by_signal(SIGPIPE);
  // Otherwise the C library's exit handlers would try to write the rest of the buffer and fail again,
  // unreported.
  std::clearerr(stdout);
  fail_errno(ExitCode::kIoError, error, "standard output");
}

// True if the failed write may be ignored, and with it all that follow.
bool is_given_up(int error) {
  if (closed_output != ClosedOutput::kIsIgnored) return false;
  is_output_given_up = true;
  if (error != EPIPE) log_warning("standard output: {}; the run continues without it", std::strerror(error));
  return true;
}

}  // namespace

void clear_status_line() {
  if (!status_is_shown.exchange(false)) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
}

void write_output(std::string_view text) { write_coloured(visible_text(text)); }

void write_result(std::string_view text) { output_is_terminal() ? write_output(text) : write_coloured(text); }

void write_coloured(std::string_view text) {
  if (is_output_given_up) return;
  clear_status_line();
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && !is_given_up(errno))
    fail_output(errno);
  if (output_is_terminal()) flush_output();
}

void flush_output() {
  if (is_output_given_up) return;
  if (std::fflush(stdout) != 0 && !is_given_up(errno)) fail_output(errno);
}

void set_closed_output(ClosedOutput behaviour) { closed_output = behaviour; }

bool output_is_terminal() {
  static const bool result = isatty(STDOUT_FILENO) == 1;
  return result;
}

bool error_shows_status() {
  static const bool result = isatty(STDERR_FILENO) == 1 && terminal_takes_escapes();
  return result && !status_is_hidden;
}

void hide_status_lines() { status_is_hidden = true; }

bool error_takes_colours() {
  static const bool result = error_shows_status() && terminal_takes_colours();
  return result;
}

int64_t terminal_width() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize size = {};
    if (isatty(fd) == 1 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      return std::max<int64_t>(size.ws_col, kMinColumns);
    }
  }
  return kDefaultColumns;
}

bool terminal_is_utf8() {
  static const bool result = [] {
    const locale_t locale = newlocale(LC_CTYPE_MASK, "", nullptr);  // from the environment
    if (locale == nullptr) return false;
    const bool utf8 = std::strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
  }();
  return result;
}

std::string wrap_text(std::string_view text, int64_t indent, int64_t width) {
  constexpr int64_t kMaxWidth = 110;  // longer lines are hard to read
  width = std::min(width, kMaxWidth);
  const std::string margin(static_cast<size_t>(indent), ' ');
  std::string out;
  std::string line;
  const auto end_line = [&] {
    out += line.empty() ? "\n" : margin + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const size_t end = text.find_first_of(" \n");
    const std::string_view word = text.substr(0, end);
    const auto needed = static_cast<int64_t>(line.size() + (line.empty() ? 0 : 1) + word.size());
    if (!line.empty() && indent + needed > width) end_line();
    if (!word.empty()) {
      if (!line.empty()) line += ' ';
      line += word;
    }
    if (end == std::string_view::npos) break;
    if (text[end] == '\n') end_line();
    text.remove_prefix(end + 1);
  }
  if (!line.empty()) end_line();
  return out;
}

std::string bar_text(double fraction, int64_t columns, bool utf8) {
  const auto full =
      static_cast<int64_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(columns) + 1e-9);
  std::string bar;
  for (int64_t i = 0; i < columns; ++i) {
    if (utf8) {
      bar += i < full ? "\u2588" : "\u2591";
    } else {
      bar += i < full ? '#' : '.';
    }
  }
  return bar;
}

StatusLine::StatusLine() { set_before_log_line(clear_status_line); }

StatusLine::~StatusLine() {
  clear();
  set_before_log_line(nullptr);
}

void StatusLine::show(const std::string& text) {
  if (!error_shows_status()) return;
  const auto now = std::chrono::steady_clock::now();
  if (status_is_shown && now - last_shown_ < kRedrawInterval) return;
  last_shown_ = now;
  flush_output();
  std::string line(kClearLine);
  line += first_characters(text, terminal_width() - 1);
  status_is_shown = true;
  // A failed write to a closed terminal only affects the display.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void StatusLine::show(const std::string& what, double fraction, double bytes_per_second) {
  const std::string speed =
      bytes_per_second > 0 ? fmt::format(" {:.1f} GB/s", bytes_per_second * 1e-9) : std::string();
  show(fmt::format("{}: {:.0f} %{}", what, 100 * fraction, speed));
}

void StatusLine::clear() { clear_status_line(); }

void clear_line_of_child() {
  if (!error_shows_status()) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
}

void protect_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // open() returns the lowest free descriptor, which is this one.
    [[maybe_unused]] const int opened = open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void end_by_signal(int signal_number) {
  clear_status_line();
  std::signal(signal_number, SIG_DFL);
  sigset_t blocked;  // a signal is blocked within its own handler
  sigemptyset(&blocked);
  sigaddset(&blocked, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  std::raise(signal_number);
  _exit(128 + signal_number);
}

void install_terminal_cleanup() {
  std::signal(SIGINT, end_by_signal);
  std::signal(SIGTERM, end_by_signal);
}

}  // namespace tessera
