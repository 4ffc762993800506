// Programs that run beside the test: several at a time, watched, and given signals.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "e2e/process.h"

namespace tessera {

struct StartOptions {
  std::vector<std::string> environment = {};  // "NAME=value", besides the test's
  std::function<void()> prepare = {};         // in the child before it becomes the program
};

// Killed, if it still runs, when this object goes or the test itself ends.
class StartedProcess {
 public:
  // argv[0] is a path, or a name that PATH has.
  StartedProcess(const std::vector<std::string>& argv, const StartOptions& options);
  ~StartedProcess();
  StartedProcess(const StartedProcess&) = delete;
  StartedProcess& operator=(const StartedProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  // What it has written until now.
  std::string out() const;
  std::string err() const;

  bool has_ended();
  // False when it still runs after `limit`.
  bool wait(std::chrono::milliseconds limit);
  // Until it has written `text`; false when it has ended, or has not by then.
  bool wait_for_output(const std::string& text, std::chrono::milliseconds limit);

  // When it has ended.
  ProcessResult result();
  std::chrono::steady_clock::time_point ended_at() const { return ended_at_; }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  int err_ = -1;
  std::optional<int> status_;
  std::chrono::steady_clock::time_point ended_at_;
};

// The built program.
const char* tessera_binary();

// The rank among the children of an agent of `tessera launch`; 0 when there is none (yet).
pid_t pid_of_rank(pid_t agent, int rank);

// Also a zombie is gone: it may have lost the parent that would wait for it.
bool is_gone(pid_t pid);

}  // namespace tessera
