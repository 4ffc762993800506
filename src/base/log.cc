#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <cstdlib>
#include <set>
#include <string_view>

#include <atomic>
#include <memory>
#include <mutex>

#include "base/text.h"

namespace tessera {
namespace {

std::atomic<void (*)()> before_log_line{nullptr};

constexpr size_t kMaxTappedLines = 1000;
std::mutex tap_mutex;  // guards the pointer and the tap's lines
LogTap* tap = nullptr;

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    const auto mode = terminal_takes_colours() ? spdlog::color_mode::automatic : spdlog::color_mode::never;
    auto log = std::make_shared<spdlog::logger>("tessera",
                                                std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode));
    log->set_pattern("%^%l:%$ %v");
    return log;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void raise_log_level(LogLevel level) {
  if (logger().level() < to_spdlog(level)) set_log_level(level);
}

void set_before_log_line(void (*callback)()) { before_log_line = callback; }

LogTap::LogTap() {
  const std::lock_guard lock(tap_mutex);
  if (tap == nullptr) tap = this;
}

LogTap::~LogTap() {
  const std::lock_guard lock(tap_mutex);
  if (tap == this) tap = nullptr;
}

void LogTap::add(std::string_view message) {
  if (lines_.size() < kMaxTappedLines) lines_.emplace_back(message);
  has_lines_ = true;
}

std::vector<std::string> LogTap::take() {
  if (!has_lines_.exchange(false)) return {};
  const std::lock_guard lock(tap_mutex);
  return std::exchange(lines_, {});
}

void log_line(LogLevel level, std::string_view text) {
  // Lines after the first are indented: no text from outside can look like a message of its own.
  std::string message = visible_text(text);
  for (size_t at = message.find('\n'); at != message.npos; at = message.find('\n', at + 1))
    message.insert(at + 1, "  ");
  if (level >= LogLevel::kWarning) {
    const std::lock_guard lock(tap_mutex);
    if (tap != nullptr) tap->add(message);
  }
  if (!logger().should_log(to_spdlog(level))) return;
  if (void (*callback)() = before_log_line) callback();
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void log_warning_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  {
    const std::lock_guard lock(mutex);
    if (!logged.insert(message).second) return;
  }
  log_warning("{}", message);
}

bool terminal_takes_escapes() {
  const char* type = std::getenv("TERM");
  return type == nullptr || std::string_view(type) != "dumb";
}

bool terminal_takes_colours() {
  const char* wish = std::getenv("NO_COLOR");
  return (wish == nullptr || *wish == '\0') && terminal_takes_escapes();
}

}  // namespace tessera
