// What members must tell each other before they can connect.
#pragma once

#include <chrono>
#include <string>

namespace tessera {

// The values of a job's store; another one in tests. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set; Error(kTryAgain) at the deadline.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  virtual std::string host(int rank) const = 0;
  // Of this process, for others to connect to.
  virtual std::string local_address() const = 0;
  // Known to the members of this start of the job alone, as far as the job has a secret.
  virtual std::string job_key() const { return {}; }
};

}  // namespace tessera
