#include "bench/step/other_program.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "platform/cpu.h"

namespace tessera {
namespace {

// This process's environment plus `variable`, for posix_spawn.
std::vector<char*> environment_with(std::string& variable) {
  std::vector<char*> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.push_back(*entry);
  const std::string name = variable.substr(0, variable.find('='));
  if (!name.empty() && std::getenv(name.c_str()) == nullptr) entries.push_back(variable.data());
  entries.push_back(nullptr);
  return entries;
}

}  // namespace

OtherProgram::OtherProgram(std::string command, std::string variable) : command_(std::move(command)) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail_errno(ExitCode::kIoError, errno, "socketpair");
  }
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string shell = "sh", flag = "-c";
  const std::array<char*, 4> arguments = {shell.data(), flag.data(), command_.data(), nullptr};
  const std::vector<char*> environment = environment_with(variable);
  const UnpinnedScope all_processors;
  const int status = posix_spawn(&pid_, "/bin/sh", &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (status != 0) {
    close(socket_);
    fail_errno(ExitCode::kIoError, status, "/bin/sh");
  }
  constexpr std::string_view kReady = "ready ";
  try {
    const std::string line = read_line();
    if (!line.starts_with(kReady)) {
      fail(ExitCode::kUsage, "'{}': expected a first line 'ready NAME', found '{}'", printable(command_),
           printable(line));
    }
    name_ = line.substr(kReady.size());
  } catch (const Error&) {
    close(socket_);
    waitpid(pid_, nullptr, 0);
    throw;
  }
}

OtherProgram::~OtherProgram() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

double OtherProgram::run(const std::string& what) {
  const std::string request = what + "\n";
  // MSG_NOSIGNAL: if the other program is gone, that is an error here, not a fatal SIGPIPE.
  if (send(socket_, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    fail_errno(ExitCode::kIoError, errno,
               fmt::format("'{}': cannot be asked for {}", printable(command_), what));
  }
  const std::string line = read_line();
  const double seconds = parse_number(line).value_or(0);
  if (!(seconds > 0)) {
    fail(ExitCode::kBadData, "'{}': expected the seconds of {}, found '{}'", printable(command_), what,
         printable(line));
  }
  return seconds;
}

std::string OtherProgram::read_line() {
  size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    std::array<char, 4096> piece = {};
    const ssize_t count = read(socket_, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno(ExitCode::kIoError, errno, fmt::format("'{}'", printable(command_)));
    if (count == 0) {
      fail(ExitCode::kUsage, "'{}' ended without an answer; run it alone to see why", printable(command_));
    }
    received_.append(piece.data(), static_cast<size_t>(count));
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

}  // namespace tessera
