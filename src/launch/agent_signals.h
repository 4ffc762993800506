// Signals and ends of children of the agent as events on a descriptor.
#pragma once

#include <csignal>
#include <vector>

namespace tessera {

// While it lives, SIGINT, SIGTERM, SIGHUP (unless the agent was started with it ignored, as nohup does),
// SIGTSTP and SIGCHLD are not delivered but can be read here; SIGPIPE is ignored. Make it before any thread.
class AgentSignals {
 public:
  AgentSignals();
  ~AgentSignals();
  AgentSignals(const AgentSignals&) = delete;
  AgentSignals& operator=(const AgentSignals&) = delete;

  int fd() const { return fd_; }
  // The signals that have come, in order; does not wait.
  std::vector<int> take();

 private:
  int fd_ = -1;
  sigset_t former_mask_ = {};
  struct sigaction former_pipe_ = {};
};

}  // namespace tessera
