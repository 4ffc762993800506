#include "e2e/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>

#include "test_paths.h"

namespace tessera {
namespace {

constexpr std::chrono::minutes kTimeLimit{4};

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  explicit Pipe(bool is_terminal = false) {
    std::array<int, 2> ends = {};
    const int error =
        is_terminal ? openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) : pipe2(ends.data(), O_CLOEXEC);
    if (error == 0) {
      read_end = ends[0];
      write_end = ends[1];
    }
  }
};

void limit(decltype(RLIMIT_AS) resource, const std::optional<int64_t>& bytes) {
  if (!bytes) return;
  const rlimit value = {static_cast<rlim_t>(*bytes), static_cast<rlim_t>(*bytes)};
  setrlimit(resource, &value);
}

void limit_open_files(int64_t count) {
  rlimit value = {};
  getrlimit(RLIMIT_NOFILE, &value);
  value.rlim_cur = static_cast<rlim_t>(count);
  setrlimit(RLIMIT_NOFILE, &value);
}

void keep_one_processor() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

[[noreturn]] void become_tessera(const std::vector<std::string>& arguments, const ProcessOptions& options,
                                 int in, int out, int err) {
  if (options.output_file) out = open(options.output_file->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  limit(RLIMIT_FSIZE, options.max_file_bytes);
  limit(RLIMIT_AS, options.max_address_space_bytes);
  if (options.open_files) limit_open_files(*options.open_files);
  if (options.one_processor) keep_one_processor();
  for (const std::string& entry : options.environment) {
    const size_t equals = entry.find('=');
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  std::vector<char*> argv = {const_cast<char*>("tessera")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(tessera_binary(), argv.data());
  _exit(127);
}

// Appends what can be read; false at end of file.
bool drain(int fd, std::string* text) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count > 0) text->append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

}  // namespace

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

ProcessResult run_tessera(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  const Pipe in;
  const Pipe out;
  const Pipe err(options.error_is_terminal);
  if (!options.output_has_reader) close(out.read_end);
  const pid_t pid = fork();
  if (pid == 0) become_tessera(arguments, options, in.read_end, out.write_end, err.write_end);
  close(in.read_end);
  close(out.write_end);
  close(err.write_end);

  ProcessResult result;
  const auto former_handler = std::signal(SIGPIPE, SIG_IGN);  // the child may not read its input
  size_t written = 0;
  int input = in.write_end;
  bool out_open = options.output_has_reader;
  bool err_open = true;
  fcntl(input, F_SETFL, O_NONBLOCK);
  const auto deadline = std::chrono::steady_clock::now() + kTimeLimit;
  while (out_open || err_open) {
    if (input >= 0 && written == options.input.size()) {
      close(input);
      input = -1;
    }
    std::array<pollfd, 3> wanted = {{{out_open ? out.read_end : -1, POLLIN, 0},
                                     {err_open ? err.read_end : -1, POLLIN, 0},
                                     {input, POLLOUT, 0}}};
    poll(wanted.data(), wanted.size(), 1000);
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid, SIGKILL);
      ADD_FAILURE() << "tessera ran for too long";
      break;
    }
    if (wanted[0].revents != 0) out_open = drain(out.read_end, &result.out);
    if (wanted[1].revents != 0) err_open = drain(err.read_end, &result.err);
    if (wanted[2].revents != 0) {
      const ssize_t count = write(input, options.input.data() + written, options.input.size() - written);
      written = count < 0 ? options.input.size() : written + static_cast<size_t>(count);
    }
    if (options.on_output) options.on_output(pid, result.out, result.err);
  }
  if (input >= 0) close(input);
  if (options.output_has_reader) close(out.read_end);
  close(err.read_end);
  int status = 0;
  waitpid(pid, &status, 0);
  std::signal(SIGPIPE, former_handler);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
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
