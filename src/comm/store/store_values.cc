#include "comm/store/store_values.h"

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera {

void StoreValues::set(const std::string& key, std::string value) {
  const auto old = values_.find(key);
  const size_t old_bytes = old == values_.end() ? 0 : key.size() + old->second.size();
  const size_t bytes = bytes_ - old_bytes + key.size() + value.size();
  if (bytes > kMaxBytes) {
    fail(ExitCode::kBadConfig, "the store is full: {} in it, at most {}, setting '{}' to {}",
         format_bytes(static_cast<int64_t>(bytes_)), format_bytes(static_cast<int64_t>(kMaxBytes)),
         printable(key), format_bytes(static_cast<int64_t>(value.size())));
  }
  bytes_ = bytes;
  const std::string& stored = values_.insert_or_assign(key, std::move(value)).first->second;
  if (auto waiting = waiting_.extract(key)) {
    for (const Waiter& waiter : waiting.mapped()) send_reply_(waiter, stored);
  }
}

void StoreValues::get(const std::string& key, const Waiter& waiter) {
  if (const auto found = values_.find(key); found != values_.end()) {
    send_reply_(waiter, found->second);
  } else {
    waiting_[key].push_back(waiter);
  }
}

int64_t StoreValues::add(const std::string& key, int64_t amount) {
  int64_t sum = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::optional<int64_t> present = parse_integer(found->second);
    if (!present) {
      fail(ExitCode::kBadData, "store: '{}' is not a number to add to, found '{}'", printable(key),
           printable(found->second));
    }
    sum = *present;
  }
  if (__builtin_add_overflow(sum, amount, &sum)) {
    fail(ExitCode::kBadData, "store: '{}' + {} is beyond 64 bits", printable(key), amount);
  }
  set(key, std::to_string(sum));
  return sum;
}

void StoreValues::cancel(const Waiter& waiter) {
  for (auto& [key, waiters] : waiting_) std::erase(waiters, waiter);
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

void StoreValues::cancel_all_of(uint64_t member) {
  for (auto& [key, waiters] : waiting_) {
    std::erase_if(waiters, [&](const Waiter& waiter) { return waiter.member == member; });
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace tessera
