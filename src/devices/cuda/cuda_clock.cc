#include "devices/cuda/cuda_clock.h"

#include <cuda_runtime.h>

#include "base/error.h"
#include "devices/cuda/cuda_check.h"

namespace tessera::cuda {
namespace {

// Later intervals than one that end() adds, while the card works on them.
constexpr int64_t kUnaddedIntervals = 64;

cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

CudaClock::~CudaClock() {
  for (void* const event : events_) static_cast<void>(cudaEventDestroy(as_event(event)));
  for (void* const event : free_) static_cast<void>(cudaEventDestroy(as_event(event)));
}

int64_t CudaClock::record() {
  device_->make_current();
  if (free_.empty()) {
    cudaEvent_t created = nullptr;
    check_cuda(cudaEventCreate(&created));
    free_.push_back(created);
  }
  check_cuda(cudaEventRecord(as_event(free_.back()), device_->stream()));
  events_.push_back(free_.back());
  free_.pop_back();
  return next_event() - 1;
}

void CudaClock::begin() {
  device_->make_current();
  const bool is_busy = !events_.empty() && !has_passed(next_event() - 1);
  begin_ = is_busy ? next_event() - 1 : record();
}

void CudaClock::end(double* sum_s) {
  intervals_.push_back({begin_, record(), sum_s});
  while (std::ssize(intervals_) > kUnaddedIntervals && has_passed(intervals_.front().end)) add_first();
}

void CudaClock::finish() {
  if (intervals_.empty()) return;
  device_->make_current();
  check_cuda(cudaEventSynchronize(as_event(event(intervals_.back().end))));
  while (!intervals_.empty()) add_first();
}

void CudaClock::discard() {
  intervals_.clear();
  free_events_before(next_event());
}

bool CudaClock::has_passed(int64_t event_number) const {
  const cudaError_t status = cudaEventQuery(as_event(event(event_number)));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // a launch would report it
    return false;
  }
  check_cuda(status);
  return true;
}

void CudaClock::add_first() {
  const Interval interval = intervals_.front();
  float milliseconds = 0;
  check_cuda(
      cudaEventElapsedTime(&milliseconds, as_event(event(interval.begin)), as_event(event(interval.end))));
  *interval.sum_s += 1e-3 * static_cast<double>(milliseconds);
  intervals_.pop_front();
  // The last one may be where the next interval begins.
  free_events_before(intervals_.empty() ? next_event() - 1 : intervals_.front().begin);
}

void CudaClock::free_events_before(int64_t number) {
  for (; first_event_ < number; ++first_event_) {
    free_.push_back(events_.front());
    events_.pop_front();
  }
}

}  // namespace tessera::cuda
