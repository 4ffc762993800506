// The first failure of a job, as every rank shall report it. Whoever waits for a peer asks check() meanwhile,
// so that a failure anywhere ends every wait within milliseconds.
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
  ExitCode code = ExitCode::kTryAgain;  // for those who end because of it
  bool is_disruption = false;           // nodes, networks or processes that vanish, not what the program does
};

// Ends this process because of another one, which the message names.
class PeerError : public Error {
 public:
  using Error::Error;
};

// Who wants to be a member is refused for good: trying again is of no use.
class RefusedError : public Error {
 public:
  using Error::Error;
};

// Thread-safe. The base class knows only this process; StoreClient's adds what the store learns.
class FailureDetector {
 public:
  virtual ~FailureDetector() = default;

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  // Throws the failure, once there is one, as PeerError. Costs an atomic load until then.
  void check() const {
    if (failed()) raise();
  }
  std::optional<Failure> failure() const;
  // The first one counts. Returns whether this was it.
  bool set(Failure failure);

  // For who finds a peer gone, silent or at odds with the protocol: `evidence` is one line that names rank,
  // host, operation and bytes. Asks for the true cause, which may be another rank, waits for it for at most a
  // second, and throws it, or the evidence. `code` is for those who end because of it: kTryAgain where
  // starting again may help.
  [[noreturn]] void fail_because(int suspect_rank, const std::string& evidence,
                                 ExitCode code = ExitCode::kTryAgain);
  // What wait() returns. Where it ends at its deadline, as Error(kTryAgain), that is because of rank
  // `awaited`: fail_because().
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
  // The cause as far as it can be known.
  virtual Failure settle(Failure suspicion) { return suspicion; }

 private:
  [[noreturn]] void raise() const;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
};

}  // namespace tessera
