#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "base/terminal_type.h"

namespace tessera {
namespace {

std::atomic<void (*)()> before_log_line{nullptr};

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

void log_line(LogLevel level, std::string_view message) {
  if (!logger().should_log(to_spdlog(level))) return;
  if (void (*callback)() = before_log_line) callback();
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace tessera
