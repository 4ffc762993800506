#include "launch/ranks/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <limits>
#include <span>

#include "base/error.h"
#include "comm/ranks/world.h"
#include "platform/system.h"

namespace tessera {
namespace {

std::vector<char*> pointers_to(std::span<const std::string> texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Everything the child needs, prepared in advance: between vfork and exec it shares the agent's memory and
// must not allocate.
struct ChildStart {
  const char* path;
  char* const* argv;
  char* const* environment;
  const unsigned long* cpu_mask;
  size_t cpu_mask_bytes;
  int out;
  int err;
  int null_input;
  int error_pipe;  // closed by exec; receives errno if that fails
  std::span<const int> inherited;
  pid_t agent;
};

[[noreturn]] void become_rank(const ChildStart& start) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.agent) _exit(127);  // the agent has already ended
  setpgid(0, 0);
  if (start.cpu_mask_bytes > 0) {
    sched_setaffinity(0, start.cpu_mask_bytes, reinterpret_cast<const cpu_set_t*>(start.cpu_mask));
  }
  dup2(start.null_input, STDIN_FILENO);
  if (start.out >= 0) dup2(start.out, STDOUT_FILENO);
  if (start.err >= 0) dup2(start.err, STDERR_FILENO);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGTSTP, SIGCONT, SIGCHLD}) std::signal(number, SIG_DFL);
  // Rank 0 is in the terminal's background, yet may write to it regardless of `stty tostop`.
  std::signal(SIGTTOU, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  restore_open_file_limit();
  // Including the store's sockets: a rank's children could otherwise block its port for the next start.
  close_range(STDERR_FILENO + 1, std::numeric_limits<unsigned>::max(), CLOSE_RANGE_CLOEXEC);
  for (const int fd : start.inherited) fcntl(fd, F_SETFD, 0);
  execve(start.path, start.argv, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(start.error_pipe, &error, sizeof(error));
  _exit(127);
}

// A separate function, so that none of its caller's variables is live in both processes.
[[gnu::noinline]] pid_t start_child(const ChildStart& start) {
  const pid_t pid = vfork();
  if (pid == 0) become_rank(start);
  return pid;
}

// The mask in the form sched_setaffinity takes; empty for no processors.
std::vector<unsigned long> affinity_mask(const std::vector<int>& cpus) {
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const auto bit = static_cast<size_t>(cpu);
    mask.resize(std::max(mask.size(), bit / kWordBits + 1));
    mask[bit / kWordBits] |= 1ul << bit % kWordBits;
  }
  return mask;
}

}  // namespace

pid_t start_rank(const RankProcessOptions& options) {
  const std::vector<char*> argv = pointers_to(std::span(options.program).subspan(1));
  const std::vector<char*> environment = pointers_to(options.environment);
  const std::vector<unsigned long> mask = affinity_mask(options.cpus);
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) fail_errno(ExitCode::kIoError, errno, "a pipe for a rank");
  const int null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t pid = start_child({.path = options.program.front().c_str(),
                                 .argv = argv.data(),
                                 .environment = environment.data(),
                                 .cpu_mask = mask.data(),
                                 .cpu_mask_bytes = mask.size() * sizeof(mask[0]),
                                 .out = options.out,
                                 .err = options.err,
                                 .null_input = null_input,
                                 .error_pipe = error_pipe[1],
                                 .inherited = options.inherited,
                                 .agent = getpid()});
  const int start_error = pid < 0 ? errno : 0;
  close(error_pipe[1]);
  close(null_input);
  int exec_error = 0;
  const bool failed = pid > 0 && read(error_pipe[0], &exec_error, sizeof(exec_error)) == sizeof(exec_error);
  close(error_pipe[0]);
  if (pid < 0) fail_errno(ExitCode::kIoError, start_error, "a process for a rank");
  if (failed) {
    waitpid(pid, nullptr, 0);
    fail_errno(ExitCode::kNoInput, exec_error,
               fmt::format("program '{}' cannot be executed", options.program[1]));
  }
  return pid;
}

int RankEnd::final_code() const { return signal != 0 ? static_cast<int>(ExitCode::kTryAgain) : exit_code; }

std::string RankEnd::how() const {
  return signal != 0 ? signal_text(signal) : fmt::format("exit code {}", exit_code);
}

std::string RankEnd::describe() const {
  if (caused_by_peer() || tells_users_mistake()) return report->message;
  const std::string who = describe_rank(rank, host);
  // A rank's own message may begin with its name.
  if (report && signal == 0 && report->message.starts_with(who)) return report->message;
  if (report && signal == 0) return fmt::format("{}: {}", who, report->message);
  if (signal == 0) return fmt::format("{} ended with exit code {}", who, exit_code);
  // If the rank died of this signal, its report says where (launch/reports/crash_handler.h).
  if (report && report->code == 128 + signal) return fmt::format("{} was {}", who, report->message);
  return fmt::format("{} was killed by {}{}", who, signal_text(signal),
                     out_of_memory ? ": the kernel's out-of-memory killer has been at work" : "");
}

std::string RankEnd::describe_to_others() const {
  const bool names_host = tells_users_mistake() && !caused_by_peer();
  return names_host ? fmt::format("host {}: {}", host, report->message) : describe();
}

const RankEnd* find_culprit(const std::vector<RankEnd>& ends) {
  const RankEnd* culprit = nullptr;
  const auto weight = [](const RankEnd& end) {
    return (end.was_told_to_end ? 2 : 0) + (end.caused_by_peer() ? 1 : 0);
  };
  for (const RankEnd& end : ends) {
    if (end.failed() && (culprit == nullptr || weight(end) < weight(*culprit))) culprit = &end;
  }
  if (culprit == nullptr || !culprit->report) return culprit;
  // An error that every rank finds on its own (a missing file) is attributed to the lowest rank.
  for (const RankEnd& end : ends) {
    const bool says_the_same = end.failed() && end.report && end.exit_code == culprit->exit_code &&
                               end.report->message == culprit->report->message;
    if (says_the_same && end.rank < culprit->rank) culprit = &end;
  }
  return culprit;
}

bool restart_may_help(int exit_code) {
  switch (static_cast<ExitCode>(exit_code)) {
    case ExitCode::kDone:
    case ExitCode::kUsage:
    case ExitCode::kBadData:
    case ExitCode::kNoInput:
    case ExitCode::kInternal:
    case ExitCode::kBadConfig:
    case ExitCode::kNumerics:
      return false;
    default:
      return true;
  }
}

}  // namespace tessera
