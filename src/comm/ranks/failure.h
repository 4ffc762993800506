// The first failure of a job, as every rank reports it. Code that waits for a peer polls check() while it
// waits, so that a failure anywhere ends every wait within milliseconds.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"

namespace tessera {

struct Failure {
  int rank = -1;          // of the culprit; -1: not a rank (an agent, a network, the configuration)
  std::string host = {};  // of the culprit
  std::string
      message;  // one line that names the culprit: "rank 2 on host b was killed by signal 9 (SIGKILL)"
  ExitCode code = ExitCode::kTryAgain;  // exit code of those who exit because of it
  bool is_disruption = false;  // a node, network or process vanished; not an error of the program itself
};

// This process exits because of another one, which the message names.
class PeerError : public Error {
 public:
  using Error::Error;
};

// The store refuses this member for good: retrying is pointless.
class RefusedError : public Error {
 public:
  using Error::Error;
};

// Thread-safe. The base class knows only about this process; StoreClient's detector adds what the store
// learns.
class FailureDetector {
 public:
  virtual ~FailureDetector() = default;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  // Throws the failure as PeerError once there is one. Costs one atomic load until then.
  void check() const {
    if (failed()) raise();
  }
  std::optional<Failure> failure() const;
  // Only the first failure is kept. Returns whether this was the first.
  bool set(Failure failure);

  // Called on finding a peer gone, silent or violating the protocol: `evidence` is one line that names rank,
  // host, operation and bytes. Asks for the true cause, which may be another rank, waits for it at most a
  // second, and throws it, or otherwise the evidence. `code` is the exit code of those who exit because of
  // it: kTryAgain where a restart may help.
  [[noreturn]] void fail_because(int suspect_rank, const std::string& evidence,
                                 ExitCode code = ExitCode::kTryAgain);
  // Returns what wait() returns. If wait() times out with Error(kTryAgain), blames rank `awaited` through
  // fail_because().
  template <typename Wait>
  auto blame_at_deadline(int awaited, const std::string& evidence, const Wait& wait) -> decltype(wait()) {
    try {
      return wait();
    } catch (const PeerError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kTryAgain) throw;
    }
    fail_because(awaited, evidence);
  }

 protected:
  // The cause, as far as it can be determined.
  virtual Failure settle(Failure suspicion) { return suspicion; }

 private:
  [[noreturn]] void raise() const;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
};

}  // namespace tessera
