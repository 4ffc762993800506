// Addresses of hosts by name, with a deadline.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

bool is_numeric_address(const std::string& host);

// The system's resolver has no deadline and waits for silent name servers for as long as it is configured to.
// Each lookup has a thread of its own, which is left to itself when it takes too long; whoever asks for the
// same name before it is through waits for it, so that there is one at a time and short tries reach slow
// servers.
class HostLookup {
 public:
  using Clock = std::chrono::steady_clock;

  struct Answer {
    std::vector<std::string> addresses;  // numeric, in the order of the system; none: see problem
    std::string problem;
    Clock::time_point time;
  };
  using Resolver = std::function<Answer(const std::string& host)>;

  explicit HostLookup(Resolver resolver) : resolver_(std::move(resolver)) {}
  // With the system's resolver.
  static HostLookup& system();

  // At least one. Error(kTryAgain) when the name has none, or there is no answer by `limit`.
  std::vector<std::string> addresses_of(const std::string& host, Clock::time_point limit);

 private:
  std::shared_future<Answer> answer_for(const std::string& host);

  const Resolver resolver_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Answer>> running_;  // mutex_; that nobody has read yet
};

}  // namespace tessera
