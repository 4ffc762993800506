#include "cli/doctor/health_report.h"

#include <algorithm>

#include "base/log.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

bool is_ignored(const Check& check, const std::vector<std::string>& ignored) {
  return std::ranges::find(ignored, check.name) != ignored.end();
}

const char* word_for(CheckOutcome outcome) {
  switch (outcome) {
    case CheckOutcome::kOk:
      return "ok";
    case CheckOutcome::kAdvice:
      return "advice";
    case CheckOutcome::kFailed:
      return "FAILED";
    case CheckOutcome::kSkipped:
      return "skipped";
    case CheckOutcome::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace

void print_checks(const std::vector<Check>& checks, const std::vector<std::string>& ignored) {
  constexpr size_t kMessageColumn = 31;
  for (const Check& check : checks) {
    const std::string message = check.message + (is_ignored(check, ignored) ? " (ignored)" : "");
    const std::string lines = wrap_text(message, kMessageColumn, kMaxLineColumns);
    print("{:<8} {:<22}{}{}", word_for(check.outcome), check.name,
          lines.substr(std::min(kMessageColumn, lines.size())), lines.ends_with('\n') ? "" : "\n");
  }
}

void end_with_health(const std::vector<Check>& checks, const std::vector<std::string>& ignored) {
  flush_output();
  for (const Check& check : checks) {
    if (check.outcome == CheckOutcome::kFailed && !is_ignored(check, ignored)) {
      log_line(LogLevel::kError, check.name + ": " + check.message);
    }
  }
  const Health health = health_of(checks, ignored);
  if (health != Health::kHealthy) throw ResultCode{static_cast<int>(health)};
}

}  // namespace tessera
