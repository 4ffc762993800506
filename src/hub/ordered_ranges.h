// Ranges of a file that are fetched at the same time and passed on in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class OrderedRanges {
 public:
  // Fetches bytes [begin, end) and appends them to the text; called by several threads. It should return
  // early, with any text, once `is_wanted` returns false.
  using Fetch =
      std::function<void(int64_t begin, int64_t end, const std::function<bool()>& is_wanted, std::string*)>;
  using Write = std::function<void(std::string_view)>;

  // Both outlive this.
  OrderedRanges(int64_t begin, int64_t end, int64_t range_bytes, int num_threads, const Fetch& fetch,
                const Write& write)
      : begin_(begin),
        end_(end),
        range_bytes_(range_bytes),
        num_threads_(num_threads),
        fetch_(fetch),
        write_(write) {}

  // Calls write(), one thread at a time, with all bytes in order. Rethrows the first exception of either
  // function; what was written by then is a first part. At most num_threads + 4 ranges are in memory.
  void run();

 private:
  void work();
  // Writes what follows what is written, unless another thread does.
  void drain(std::unique_lock<std::mutex>* lock);

  const int64_t begin_;
  const int64_t end_;
  const int64_t range_bytes_;
  const int num_threads_;
  const Fetch& fetch_;
  const Write& write_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_started_ = 0;
  int64_t num_written_ = 0;
  bool is_draining_ = false;
  std::map<int64_t, std::string> arrived_;  // by index
  std::vector<std::string> spare_;          // empty, with the memory of ranges that are written
  std::exception_ptr error_;
};

}  // namespace tessera
