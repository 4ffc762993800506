// Host name lookup with a deadline.
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

// The system's resolver takes no deadline and waits for unresponsive name servers for as long as it is
// configured to. Each lookup runs in a thread of its own, which is abandoned when it takes too long. Requests
// for a name whose lookup is still running wait for that lookup, so that there is only one per name and
// repeated short attempts succeed even with slow servers.
class HostLookup {
 public:
  using Clock = std::chrono::steady_clock;

  struct Result {
    std::vector<std::string> addresses;  // numeric, in the order the system returns; empty: see problem
    std::string problem;
    Clock::time_point time;
  };
  using Resolver = std::function<Result(const std::string& host)>;

  explicit HostLookup(Resolver resolver) : resolver_(std::move(resolver)) {}
  // Uses the system's resolver.
  static HostLookup& system();

  // Returns at least one address. Error(kTryAgain) if the name has none or there is no answer by `limit`.
  std::vector<std::string> addresses_of(const std::string& host, Clock::time_point limit);

 private:
  std::shared_future<Result> result_of(const std::string& host);

  const Resolver resolver_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<Result>> running_;  // mutex_; not yet read by anyone
};

}  // namespace tessera
