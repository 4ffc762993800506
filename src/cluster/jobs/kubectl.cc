#include "cluster/jobs/kubectl.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxAnswerBytes = int64_t{256} << 20;

// A process that reads from and writes into memory; killed when this is destroyed.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments, const std::string& input = "")
      : out_(memory_file("kubectl-out")), err_(memory_file("kubectl-err")), in_(memory_file("kubectl-in")) {
    if (!out_ || !err_ || !in_) fail_errno(ExitCode::kIoError, errno, "memory for kubectl");
    size_t done = 0;
    while (done < input.size()) {
      const ssize_t count =
          pwrite(in_.get(), input.data() + done, input.size() - done, static_cast<off_t>(done));
      if (count <= 0) fail_errno(ExitCode::kIoError, errno, "memory for kubectl");
      done += static_cast<size_t>(count);
    }
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in_.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out_.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err_.get(), STDERR_FILENO);
    const int error = posix_spawnp(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == ENOENT) {
      fail(ExitCode::kNoInput, "'{}' was not found: install kubectl, or name it in KUBECTL",
           printable(program));
    }
    if (error != 0) fail_errno(ExitCode::kIoError, error, fmt::format("cannot start {}", program));
  }
  ~Child() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)),
        out_(std::move(other.out_)),
        err_(std::move(other.err_)),
        in_(std::move(other.in_)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child& operator=(Child&&) = delete;

  // False if it has not ended by then.
  bool wait_until(Clock::time_point limit) {
    const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (!ended) fail_errno(ExitCode::kIoError, errno, "waiting for kubectl");
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
      pollfd event = {ended.get(), POLLIN, 0};
      const int count = poll(&event, 1, static_cast<int>(std::max<int64_t>(left, 0)));
      if (count == 0) return false;
      if (count > 0) break;
    }
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }

  KubectlAnswer answer() const { return {exit_code_, text_in(out_), text_in(err_)}; }

 private:
  static std::string text_in(const UniqueFd& file) {
    struct stat state = {};
    if (fstat(file.get(), &state) != 0) fail_errno(ExitCode::kIoError, errno, "the answer of kubectl");
    if (state.st_size > kMaxAnswerBytes)
      fail(ExitCode::kIoError, "kubectl: an answer of {} is too large", format_bytes(state.st_size));
    std::string text(static_cast<size_t>(state.st_size), '\0');
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t count =
          pread(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count <= 0) fail_errno(ExitCode::kIoError, errno, "the answer of kubectl");
      done += static_cast<size_t>(count);
    }
    return text;
  }

  pid_t pid_ = 0;
  UniqueFd out_, err_, in_;
  int exit_code_ = 0;
};

// The last line that kubectl has printed, which is the error; retries are reported before it.
std::string error_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const size_t newline = text.rfind('\n');
  return printable(newline == std::string_view::npos ? text : text.substr(newline + 1), 400);
}

}  // namespace

Kubectl::Kubectl(const Environment& environment, std::chrono::seconds limit)
    : program_(environment("KUBECTL").value_or("")), limit_(limit) {
  if (program_.empty()) program_ = "kubectl";
}

std::vector<KubectlAnswer> Kubectl::run(const std::vector<std::vector<std::string>>& commands) const {
  const Clock::time_point limit = Clock::now() + limit_;
  std::vector<Child> children;
  for (const auto& arguments : commands) children.emplace_back(program_, arguments);
  std::vector<KubectlAnswer> answers;
  for (Child& child : children) {
    if (!child.wait_until(limit))
      fail(ExitCode::kIoError, "kubectl has not answered within {} s: does `kubectl get pods` work?",
           limit_.count());
    answers.push_back(child.answer());
  }
  return answers;
}

KubectlAnswer Kubectl::run_with(const std::string& input, const std::vector<std::string>& command) const {
  Child child(program_, command, input);
  if (!child.wait_until(Clock::now() + limit_))
    fail(ExitCode::kIoError, "kubectl has not answered within {} s", limit_.count());
  return child.answer();
}

void check_connection(const KubectlAnswer& answer) {
  if (answer.exit_code == 0) return;
  const auto mentions = [&](std::string_view text) { return answer.err.find(text) != std::string::npos; };
  const std::string line = error_line(answer.err);
  if (mentions("(Unauthorized)") || mentions("must be logged in") || mentions("getting credentials"))
    fail(ExitCode::kBadConfig, "kubectl is not logged in to the cluster: {}", line);
  // Without a configuration kubectl tries localhost:8080.
  if (mentions("no configuration has been provided") || mentions("localhost:8080"))
    fail(ExitCode::kBadConfig,
         "kubectl has no cluster: {}: set KUBECONFIG, or fetch the configuration (aws eks update-kubeconfig "
         "--name CLUSTER)",
         line);
  if (mentions("Unable to connect to the server") || mentions("The connection to the server"))
    fail(ExitCode::kIoError, "the cluster cannot be reached: {}", line);
}

NoAnswer problem_of(const KubectlAnswer& answer) {
  if (answer.exit_code == 0) return NoAnswer::kNone;
  const auto mentions = [&](std::string_view text) { return answer.err.find(text) != std::string::npos; };
  if (mentions("the server doesn't have a resource type") || mentions("no matches for kind"))
    return NoAnswer::kNoKind;
  if (mentions("(Forbidden)")) return NoAnswer::kForbidden;
  check_connection(answer);
  fail(ExitCode::kIoError, "kubectl ended with code {}: {}", answer.exit_code, error_line(answer.err));
}

}  // namespace tessera
