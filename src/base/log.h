// Log lines on standard error. Library code may log; it never writes to standard output and never exits.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. The default is kInfo.
void set_log_level(LogLevel level);
// Sets the level only if it drops more than the current one.
void raise_log_level(LogLevel level);

// Writes one line. Thread-safe.
void log_line(LogLevel level, std::string_view message);

// Called before every line written; nullptr = no callback. Lets a program clear the status line it draws.
void set_before_log_line(void (*callback)());

// Collects the warnings and errors that are logged during its lifetime, written or not, for reports on a run.
// While one exists, others collect nothing.
class LogTap {
 public:
  LogTap();
  ~LogTap();
  LogTap(const LogTap&) = delete;
  LogTap& operator=(const LogTap&) = delete;

  // Lines since the last call, the first thousand; takes no lock if there are none.
  std::vector<std::string> take();

 private:
  friend void log_line(LogLevel level, std::string_view message);
  void add(std::string_view message);

  std::atomic<bool> has_lines_{false};
  std::vector<std::string> lines_;
};

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

// Logs the line unless this process has logged it before. Thread-safe.
void log_warning_once(const std::string& message);

// False with TERM=dumb, which takes no escape sequences at all.
bool terminal_takes_escapes();
// Also false if NO_COLOR is set and not empty (https://no-color.org).
bool terminal_takes_colours();

}  // namespace tessera
