#include "hub/ordered_ranges.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/divide_up.h"

namespace tessera {

void OrderedRanges::run() {
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < num_threads_; ++i) threads.emplace_back([this] { work(); });
  }
  if (error_) std::rethrow_exception(error_);
}

void OrderedRanges::work() {
  const int64_t num_ranges = divide_up(end_ - begin_, range_bytes_);
  const auto is_wanted = [this] {
    const std::lock_guard lock(mutex_);
    return error_ == nullptr;
  };
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      changed_.wait(lock, [&] {
        return error_ || num_started_ == num_ranges || num_started_ < num_written_ + num_threads_ + 4;
      });
      if (error_ || num_started_ == num_ranges) return;
      const int64_t index = num_started_++;
      std::string text;
      if (!spare_.empty()) {
        text = std::move(spare_.back());
        spare_.pop_back();
      }
      lock.unlock();
      const int64_t first = begin_ + index * range_bytes_;
      const int64_t last = std::min(end_, first + range_bytes_);
      text.reserve(static_cast<size_t>(last - first));
      fetch_(first, last, is_wanted, &text);
      lock.lock();
      if (error_) return;
      arrived_.emplace(index, std::move(text));
      drain(&lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

void OrderedRanges::drain(std::unique_lock<std::mutex>* lock) {
  if (is_draining_) return;
  is_draining_ = true;
  while (!arrived_.empty() && arrived_.begin()->first == num_written_ && !error_) {
    std::string text = std::move(arrived_.begin()->second);
    arrived_.erase(arrived_.begin());
    lock->unlock();
    write_(text);
    text.clear();
    lock->lock();
    spare_.push_back(std::move(text));
    ++num_written_;
    changed_.notify_all();
  }
  is_draining_ = false;
}

}  // namespace tessera
