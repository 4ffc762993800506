// The store's small values, and who waits for one that is not set yet.
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
  // Of keys and values together; beyond it set() and add() throw Error(kBadConfig).
  static constexpr size_t kMaxBytes = 256 << 20;

  // A request that waits: answered by calling `answer` with this number and the value.
  struct Waiter {
    uint64_t member;
    uint32_t request;
    bool operator==(const Waiter&) const = default;
  };
  using Answer = std::function<void(const Waiter& waiter, const std::string& value)>;

  explicit StoreValues(Answer answer) : answer_(std::move(answer)) {}

  void set(const std::string& key, std::string value);
  // Answers now or when the key is set.
  void get(const std::string& key, const Waiter& waiter);
  // Adds to a decimal number, 0 when not set. Error(kBadData) when the value is another text.
  int64_t add(const std::string& key, int64_t amount);
  void cancel(const Waiter& waiter);
  void cancel_all_of(uint64_t member);

 private:
  Answer answer_;
  std::unordered_map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;
  size_t bytes_ = 0;
};

}  // namespace tessera
