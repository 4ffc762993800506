// Runs the built program and others as child processes, several at a time; a test can watch them and send
// signals.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct ProcessResult {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;

  // Lines of `err` that begin with "error: ".
  std::vector<std::string> errors() const;
};

struct StartOptions {
  std::vector<std::string> environment = {};  // "NAME=value", in addition to the test's
  std::function<void()> prepare = {};         // runs in the child before exec
};

// If still running, killed when this object is destroyed or the test itself ends.
class StartedProcess {
 public:
  // argv[0] is a path, or a name to look up in PATH.
  StartedProcess(const std::vector<std::string>& argv, const StartOptions& options);
  ~StartedProcess();
  StartedProcess(const StartedProcess&) = delete;
  StartedProcess& operator=(const StartedProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  // The output so far.
  std::string out() const;
  std::string err() const;

  bool has_ended();
  // False if it is still running after `limit`.
  bool wait(std::chrono::milliseconds limit);
  // Waits until it has written `text`; false if it ends first or has not done so by `limit`.
  bool wait_for_output(const std::string& text, std::chrono::milliseconds limit);

  // Call after it has ended.
  ProcessResult result();
  std::chrono::steady_clock::time_point ended_at() const { return ended_at_; }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  int err_ = -1;
  std::optional<int> status_;
  std::chrono::steady_clock::time_point ended_at_;
};

// tessera with these arguments. A process that runs for more than four minutes is killed and fails the test.
ProcessResult run_tessera(const std::vector<std::string>& arguments, const StartOptions& options = {});

// The process of this rank among the children of an agent of `tessera launch`; 0 if there is none (yet).
pid_t pid_of_rank(pid_t agent, int rank);

// A zombie also counts as gone: the parent that would wait for it may have ended.
bool is_gone(pid_t pid);

std::vector<std::string> lines_of(const std::string& text);

// A temporary folder for a test, removed afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file in it and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);

}  // namespace tessera
