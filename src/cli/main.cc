#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/visible_text.h"
#include "cli/app.h"
#include "cli/command.h"
#include "cli/run/rank.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/terminal.h"
#include "comm/failure.h"
#include "io/absolute_path.h"
#include "launch/reports/crash_handler.h"
#include "launch/reports/crash_report.h"
#include "launch/reports/rank_report.h"
#include "launch/reports/termination_log.h"
#include "platform/cpu.h"
#include "platform/open_files.h"

namespace {

// A wrong command line is the same on all ranks, but not on all nodes: each agent has a number.
bool is_shown_by_rank_0(tessera::ExitCode code) {
  const std::vector<std::string> words = tessera::own_command_line();
  const bool is_agent = words.size() > 1 && words[1] == "launch";
  if (code != tessera::ExitCode::kUsage || is_agent) return false;
  const auto world = tessera::launched_world();
  return world && world->rank > 0;
}

// Whether this process is what its container is for, and not one that somebody has started beside it with
// `kubectl exec`.
bool is_job_of_container() {
  const std::vector<std::string> words = tessera::own_command_line();
  return getpid() == 1 || (words.size() > 1 && (words[1] == "launch" || words[1] == "train"));
}

// Reports an error in one line, which the agent shows if it started this process as a rank.
int report(tessera::ExitCode code, const std::string& message, bool caused_by_peer = false) {
  const bool left = tessera::leave_error_report(
      {.message = message, .code = static_cast<int>(code), .caused_by_peer = caused_by_peer});
  const bool is_shown = (left && tessera::agent_shows_errors(getppid())) || is_shown_by_rank_0(code);
  if (!is_shown) std::fprintf(stderr, "error: %s\n", tessera::visible_line(message).c_str());
  if (!left && is_job_of_container())
    tessera::leave_termination_message(fmt::format("exit code {}: {}", static_cast<int>(code), message));
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  // A pipe whose reader is gone, behind standard error above all, ends no run: see ClosedOutput.
  std::signal(SIGPIPE, SIG_IGN);
  // Ranks are started from /proc/self/exe, whose name the kernel would otherwise show. Threads inherit the
  // name.
  prctl(PR_SET_NAME, "tessera");
  if (argc == 2 && argv[1] == std::string_view(tessera::kDescribeCrashArgument)) {
    return tessera::run_describe_crash();
  }
  tessera::install_crash_handler("/proc/self/exe", tessera::clear_status_line);
  try {
    tessera::cpu_features();  // before any thread exists
    tessera::protect_standard_descriptors();
    tessera::raise_open_file_limit();
    // Beyond a limit of `ulimit -f` a write fails, as on a full disk, instead of ending the program.
    std::signal(SIGXFSZ, SIG_IGN);
    tessera::set_closed_output(tessera::ClosedOutput::kEndsProgram);
    tessera::install_terminal_cleanup();
    tessera::run_program(std::vector<std::string>(argv + 1, argv + argc));
    return static_cast<int>(tessera::ExitCode::kDone);
  } catch (const tessera::ResultCode& result) {
    return result.code;
  } catch (const tessera::PeerError& error) {
    return report(error.code(), error.what(), /*caused_by_peer=*/true);
  } catch (const tessera::Error& error) {
    return report(error.code(), error.what());
  } catch (const std::filesystem::filesystem_error& failure) {
    const tessera::Error error = tessera::error_from(failure);
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(tessera::ExitCode::kInternal, "out of memory");
  } catch (const std::exception& error) {
    return report(tessera::ExitCode::kInternal, "unexpected: " + tessera::printable(error.what(), 300));
  }
}
