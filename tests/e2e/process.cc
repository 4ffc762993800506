#include "e2e/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "test_paths.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{5};
constexpr std::chrono::minutes kTimeLimit{4};

std::string all_of(int fd) {
  struct stat status = {};
  fstat(fd, &status);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return text;
}

// Several writers share the file, so each must append.
int new_output(const char* name) {
  const int memory = memfd_create(name, MFD_CLOEXEC);
  fcntl(memory, F_SETFL, O_APPEND);
  return memory;
}

}  // namespace

StartedProcess::StartedProcess(const std::vector<std::string>& argv, const StartOptions& options)
    : out_(new_output("out")), err_(new_output("err")) {
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const pid_t test = getpid();
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != test) _exit(127);
  if (options.prepare) options.prepare();
  dup2(out_, STDOUT_FILENO);
  dup2(err_, STDERR_FILENO);
  for (const std::string& entry : options.environment) {
    const size_t equals = entry.find('=');
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  execvp(pointers[0], pointers.data());
  _exit(127);
}

StartedProcess::~StartedProcess() {
  if (!has_ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  close(err_);
}

void StartedProcess::send(int signal) const {
  if (!status_) kill(pid_, signal);
}

std::string StartedProcess::out() const { return all_of(out_); }
std::string StartedProcess::err() const { return all_of(err_); }

bool StartedProcess::has_ended() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
    ended_at_ = steady_clock::now();
  }
  return status_.has_value();
}

bool StartedProcess::wait(milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  while (!has_ended() && steady_clock::now() < deadline) std::this_thread::sleep_for(kLook);
  return has_ended();
}

bool StartedProcess::wait_for_output(const std::string& text, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  const auto is_there = [&] {
    return out().find(text) != std::string::npos || err().find(text) != std::string::npos;
  };
  while (!is_there()) {
    if (has_ended() || steady_clock::now() >= deadline) return is_there();
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

ProcessResult StartedProcess::result() {
  ProcessResult result;
  result.out = out();
  result.err = err();
  if (!has_ended()) {
    ADD_FAILURE() << "process " << pid_ << " still runs";
    return result;
  }
  if (WIFEXITED(*status_)) result.exit_code = WEXITSTATUS(*status_);
  if (WIFSIGNALED(*status_)) result.signal = WTERMSIG(*status_);
  return result;
}

bool is_gone(pid_t pid) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || stat[name_end + 2] == 'Z' || stat[name_end + 2] == 'X';
}

pid_t pid_of_rank(pid_t agent, int rank) {
  std::istringstream children(read_file(fmt::format("/proc/{0}/task/{0}/children", agent)));
  const std::string wanted = fmt::format("RANK={}", rank);
  for (pid_t pid = 0; children >> pid;) {
    std::istringstream variables(read_file(fmt::format("/proc/{}/environ", pid)));
    for (std::string variable; std::getline(variables, variable, '\0');) {
      if (variable == wanted) return pid;
    }
  }
  return 0;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> ProcessResult::errors() const {
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(err)) {
    if (line.starts_with("error: ")) lines.push_back(line.substr(7));
  }
  return lines;
}

ProcessResult run_tessera(const std::vector<std::string>& arguments, const StartOptions& options) {
  std::vector<std::string> argv = {tessera_binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  StartedProcess process(argv, options);
  EXPECT_TRUE(process.wait(kTimeLimit)) << "tessera ran for too long";
  return process.result();
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tessera_e2e_XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream(path_ / name, std::ios::binary) << content;
  return (path_ / name).string();
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace tessera
