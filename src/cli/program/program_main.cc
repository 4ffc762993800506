#include "cli/program/app.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/run/rank.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/terminal.h"
#include "comm/ranks/failure.h"
#include "io/absolute_path.h"
#include "launch/reports/crash_handler.h"
#include "launch/reports/crash_report.h"
#include "launch/reports/rank_report.h"
#include "launch/reports/termination_log.h"
#include "platform/cpu.h"
#include "platform/system.h"

namespace tessera {
namespace {

// A wrong command line is the same on all ranks, but not on all nodes: each agent has a number.
bool is_shown_by_rank_0(ExitCode code) {
  const std::vector<std::string> words = own_command_line();
  const bool is_agent = words.size() > 1 && words[1] == "launch";
  if (code != ExitCode::kUsage || is_agent) return false;
  const auto world = launched_world();
  return world && world->rank > 0;
}

// Whether this process is what its container is for, and not one that somebody has started beside it with
// `kubectl exec`.
bool is_job_of_container() {
  const std::vector<std::string> words = own_command_line();
  return getpid() == 1 || (words.size() > 1 && (words[1] == "launch" || words[1] == "train"));
}

// Reports an error in one line, which the agent shows if it started this process as a rank.
int report(ExitCode code, const std::string& message, bool caused_by_peer = false) {
  const bool left = leave_error_report(
      {.message = message, .code = static_cast<int>(code), .caused_by_peer = caused_by_peer});
  const bool is_shown = (left && agent_shows_errors(getppid())) || is_shown_by_rank_0(code);
  if (!is_shown) std::fprintf(stderr, "error: %s\n", visible_line(message).c_str());
  if (!left && is_job_of_container())
    leave_termination_message(fmt::format("exit code {}: {}", static_cast<int>(code), message));
  return static_cast<int>(code);
}

}  // namespace

int program_main(const std::vector<std::string>& arguments, const Commands& all) {
  // A pipe whose reader is gone, behind standard error above all, ends no run: see ClosedOutput.
  std::signal(SIGPIPE, SIG_IGN);
  // Ranks are started from /proc/self/exe, whose name the kernel would otherwise show. Threads inherit the
  // name.
  prctl(PR_SET_NAME, "tessera");
  if (arguments.size() == 1 && arguments[0] == kDescribeCrashArgument) return run_describe_crash();
  install_crash_handler("/proc/self/exe", clear_status_line);
  try {
    cpu_features();  // before any thread exists
    protect_standard_descriptors();
    raise_open_file_limit();
    // Beyond a limit of `ulimit -f` a write fails, as on a full disk, instead of ending the program.
    std::signal(SIGXFSZ, SIG_IGN);
    set_closed_output(ClosedOutput::kEndsProgram);
    install_terminal_cleanup();
    run_program(arguments, all);
    return static_cast<int>(ExitCode::kDone);
  } catch (const ResultCode& result) {
    return result.code;
  } catch (const PeerError& error) {
    return report(error.code(), error.what(), /*caused_by_peer=*/true);
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::filesystem::filesystem_error& failure) {
    const Error error = error_from(failure);
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kInternal, "out of memory");
  } catch (const std::exception& error) {
    return report(ExitCode::kInternal, "unexpected: " + printable(error.what(), 300));
  }
}

}  // namespace tessera
