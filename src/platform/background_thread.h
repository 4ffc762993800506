#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace tessera {

// Starts a thread with all signals blocked, so that they go to the thread that handles them. It mostly waits
// and copies, and runs on spare_cpus(). Error(kBadConfig) if the system refuses to create it.
std::thread start_background_thread(std::function<void()> body);

// While it lives, the calling thread blocks all signals but those of its own faults, and so do the threads
// that it starts meanwhile, for good: handlers interrupt the threads that wait for signals, no others. A
// worker may be inside a kernel whose stack has no room for a handler (oneDNN's float32 products).
class AsynchronousSignalsBlocked {
 public:
  AsynchronousSignalsBlocked() {
    sigset_t mask;
    sigfillset(&mask);
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS})
      sigdelset(&mask, fault);
    pthread_sigmask(SIG_BLOCK, &mask, &before_);
  }
  ~AsynchronousSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AsynchronousSignalsBlocked(const AsynchronousSignalsBlocked&) = delete;
  AsynchronousSignalsBlocked& operator=(const AsynchronousSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tessera
