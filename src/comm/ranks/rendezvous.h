// Publishes the addresses and keys that members need to connect to each other.
#pragma once

#include <chrono>
#include <string>

namespace tessera {

// The values of a job's store, or an in-memory substitute in tests. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set; Error(kTryAgain) at the deadline.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  virtual std::string host(int rank) const = 0;
  // The address of this process that others can connect to.
  virtual std::string local_address() const = 0;
  // Known only to the members of this start of the job, provided that the job has a secret.
  virtual std::string job_key() const { return {}; }
};

}  // namespace tessera
