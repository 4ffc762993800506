// Delivers the agent's signals and the exits of its children as events on a descriptor.
#pragma once

#include <csignal>
#include <vector>

namespace tessera {

// During its lifetime SIGINT, SIGTERM, SIGHUP (unless ignored at the agent's start, as under nohup), SIGTSTP
// and SIGCHLD are blocked and can be read here; SIGPIPE is ignored. Create it before any thread.
class AgentSignals {
 public:
  AgentSignals();
  ~AgentSignals();
  AgentSignals(const AgentSignals&) = delete;
  AgentSignals& operator=(const AgentSignals&) = delete;

  int fd() const { return fd_; }
  // The signals received so far, in order; does not wait.
  std::vector<int> take();
  // One that asks this process to end, or 0; stops the process on SIGTSTP.
  int take_stop();

 private:
  int fd_ = -1;
  sigset_t former_mask_ = {};
  struct sigaction former_pipe_ = {};
};

}  // namespace tessera
