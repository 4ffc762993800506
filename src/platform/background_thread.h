#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace tessera {

// Starts a thread with all signals blocked, so that they go to the thread that handles them. It mostly waits
// and copies, and runs on spare_cpus(). Error(kBadConfig) if the system refuses to create it.
std::thread start_background_thread(std::function<void()> body);

// While it lives, the calling thread blocks all signals except those of its own faults; threads it starts in
// that time block them for good. Handlers thus interrupt only the threads that wait for signals: a worker may
// be inside a kernel whose stack has no room for a handler (oneDNN's float32 products).
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
