// Warnings about peers that are refused. Anyone may knock as often as they like, so that lines are counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace tessera {

class RefusalLog {
 public:
  using Clock = std::chrono::steady_clock;

  // Logs "<what>: <message>", once per address and second; the next line says how many there were in between.
  // At most kMaxAddresses addresses are logged in a second.
  void warn(const std::string& what, const std::string& address, const std::string& message,
            Clock::time_point now = Clock::now());

  static constexpr size_t kMaxAddresses = 32;

 private:
  struct Line {
    Clock::time_point time;
    int64_t num_more = 0;  // since then
  };
  std::map<std::string, Line> lines_;
};

}  // namespace tessera
