// Device time by events in a card's stream.
#pragma once

#include <deque>
#include <vector>

#include "devices/cuda/cuda_device.h"

namespace tessera::cuda {

// One event per interval while the card is busy, as an interval then begins at the end of the one before;
// otherwise two. Events are used again once their intervals are in their sums, which also happens while the
// card is busy with later ones.
class CudaClock final : public DeviceClock {
 public:
  explicit CudaClock(CudaDevice& device) : device_(&device) {}
  ~CudaClock() override;
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  void begin() override;
  void end(double* sum_s) override;
  void finish() override;
  void discard() override;

 private:
  // Events in the order in which the card passes them, counted from the first ever.
  struct Interval {
    int64_t begin, end;
    double* sum_s;
  };

  void* event(int64_t number) const { return events_[static_cast<size_t>(number - first_event_)]; }
  int64_t next_event() const { return first_event_ + std::ssize(events_); }
  int64_t record();
  bool has_passed(int64_t event_number) const;
  // Adds the first of the intervals, which is over, to its sum.
  void add_first();
  void free_events_before(int64_t number);

  CudaDevice* device_;
  std::deque<void*> events_;  // recorded
  int64_t first_event_ = 0;
  std::vector<void*> free_;
  std::deque<Interval> intervals_;  // not in their sums
  int64_t begin_ = 0;               // of the interval that has begun
};

}  // namespace tessera::cuda
