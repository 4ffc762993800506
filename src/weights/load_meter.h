// Adds up the bytes read by several threads and reports progress.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "base/clock.h"
#include "weights/model_folder.h"

namespace tessera {

class LoadMeter {
 public:
  // `report` may be empty, is called by one thread at a time, and must outlive this.
  LoadMeter(int64_t total_bytes, const std::function<void(const LoadProgress&)>& report);

  void add(int64_t count_bytes);

 private:
  std::mutex mutex_;
  LoadProgress state_;
  const Stopwatch stopwatch_;
  const std::function<void(const LoadProgress&)>& report_;
};

}  // namespace tessera
