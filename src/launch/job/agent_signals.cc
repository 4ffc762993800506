#include "launch/job/agent_signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tessera {
namespace {

bool is_ignored(int number) {
  struct sigaction action = {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

AgentSignals::AgentSignals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGTSTP, SIGCHLD}) sigaddset(&wanted, number);
  if (!is_ignored(SIGHUP)) sigaddset(&wanted, SIGHUP);
  fd_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) fail_errno(ExitCode::kIoError, errno, "signalfd");
  pthread_sigmask(SIG_BLOCK, &wanted, &former_mask_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &former_pipe_);
}

AgentSignals::~AgentSignals() {
  take();  // pending signals are not meant for whatever runs next
  close(fd_);
  sigaction(SIGPIPE, &former_pipe_, nullptr);
  pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
}

int AgentSignals::take_stop() {
  for (const int number : take()) {
    if (number == SIGTSTP) kill(getpid(), SIGSTOP);
    if (number != SIGTSTP && number != SIGCHLD) return number;
  }
  return 0;
}

std::vector<int> AgentSignals::take() {
  std::vector<int> numbers;
  signalfd_siginfo info = {};
  while (read(fd_, &info, sizeof(info)) == sizeof(info)) numbers.push_back(static_cast<int>(info.ssi_signo));
  return numbers;
}

}  // namespace tessera
