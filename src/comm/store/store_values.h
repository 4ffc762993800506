// The store's small values, and the requests waiting for one that is not set yet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera {

class StoreValues {
 public:
  // Limit of keys and values together; beyond it set() and add() throw Error(kBadConfig).
  static constexpr size_t kMaxBytes = 256 << 20;

  // A waiting request: answered by calling `send_reply` with it and the value.
  struct Waiter {
    uint64_t member;
    uint32_t request;
    bool operator==(const Waiter&) const = default;
  };
  using SendReply = std::function<void(const Waiter& waiter, const std::string& value)>;

  explicit StoreValues(SendReply send_reply) : send_reply_(std::move(send_reply)) {}

  void set(const std::string& key, std::string value);
  // Answers now, or once the key is set.
  void get(const std::string& key, const Waiter& waiter);
  // Adds to a decimal number, 0 if not set. Error(kBadData) if the value is not a number.
  int64_t add(const std::string& key, int64_t amount);
  void cancel(const Waiter& waiter);
  void cancel_all_of(uint64_t member);

 private:
  SendReply send_reply_;
  std::unordered_map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;
  size_t bytes_ = 0;
};

}  // namespace tessera
