#include "weights/load_meter.h"

namespace tessera {

double LoadProgress::fraction() const {
  return bytes_total == 0 ? 1 : static_cast<double>(bytes_done) / static_cast<double>(bytes_total);
}

double LoadProgress::bytes_per_second() const {
  return seconds > 0 ? static_cast<double>(bytes_done) / seconds : 0;
}

LoadMeter::LoadMeter(int64_t total_bytes, const std::function<void(const LoadProgress&)>& report)
    : report_(report) {
  state_.bytes_total = total_bytes;
}

void LoadMeter::add(int64_t count_bytes) {
  if (!report_) return;
  const std::lock_guard lock(mutex_);
  state_.bytes_done += count_bytes;
  state_.seconds = stopwatch_.seconds();
  report_(state_);
}

}  // namespace tessera
