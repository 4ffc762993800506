// The execution of a network group's operations: its queue, its worker threads and their waits.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/network/network_group.h"
#include "comm/network/network_lane.h"
#include "platform/background_thread.h"
#include "platform/cpu.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Within this time a failure elsewhere ends a wait.
constexpr milliseconds kCheckInterval{20};
// The time a member that leaves in good order keeps serving the others' last acknowledgements.
constexpr milliseconds kLeaveTime{500};
constexpr milliseconds kLeaveInterval{1};
// A worker looks at deadlines and failures every few milliseconds: one that is silent for so long beyond them
// does not come back from a provider of libfabric.
constexpr milliseconds kStuckTime{5000};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

uint64_t hash_of(std::span<const Part> parts) {
  uint64_t hash = parts.size();
  for (const Part& part : parts) {
    for (const int64_t bound : {part.begin, part.end}) {
      hash = (hash ^ static_cast<uint64_t>(bound)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
  }
  return hash;
}

}  // namespace

NetworkGroup::~NetworkGroup() {
  stop_workers();
  leave();
}

NetworkGroup::Ticket NetworkGroup::issue(Collective collective, std::byte* data, std::span<const Part> parts,
                                         int root, const OpLabel& label, const GradientFeedback& feedback,
                                         std::byte* received, std::span<const Part> received_parts) {
  if (members_.size() == 1) return 0;
  int64_t elements = 0;
  for (const Part& part : parts) elements = std::max(elements, part.end);
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return issued_ - completed_ < kMaxRunning; });
  // Overlapping operations count once.
  if (issued_ == completed_) busy_since_ = Clock::now();
  const Ticket ticket = ++issued_;
  NetworkOperation& operation = ring_[ticket % kMaxRunning];
  operation.id = {.number = ticket,
                  .collective = collective,
                  .root = root,
                  .total_bytes = wire_bytes(collective, elements),
                  .parts_hash = hash_of(parts),
                  .label = label};
  operation.data = data;
  operation.parts.assign(parts.begin(), parts.end());
  operation.feedback = feedback;
  operation.received = received;
  operation.received_parts.assign(received_parts.begin(), received_parts.end());
  if (ticket == completed_ + 1) mark_position(ticket, false);
  lock.unlock();
  issued_changed_.notify_all();
  return ticket;
}

void NetworkGroup::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  if (completed_ >= ticket) return;
  const Clock::time_point begin = Clock::now();
  wait_until(lock, [&] { return completed_ >= ticket; });
  // Until the operation was over, not until this thread ran again.
  wait_s_ += std::max(0.0, seconds_between(begin, std::min(Clock::now(), completed_at_)));
}

void NetworkGroup::wait_for_all() {
  if (members_.size() == 1) return;
  std::unique_lock lock(mutex_);
  const Ticket last = issued_;
  lock.unlock();
  wait(last);
}

bool NetworkGroup::done(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return completed_ >= ticket;
}

void NetworkGroup::abandon() noexcept {
  std::unique_lock lock(mutex_);
  if (completed_ == issued_) return;
  if (!error_) {
    error_ = std::make_exception_ptr(Error(ExitCode::kTryAgain, "operations between nodes were abandoned"));
  }
  end_workers(lock);
}

NetworkCounters NetworkGroup::counters() const {
  NetworkCounters counters;
  if (members_.size() == 1) return counters;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    counters.sent_bytes += lane->counters().sent_bytes.load(std::memory_order_relaxed);
    counters.received_bytes += lane->counters().received_bytes.load(std::memory_order_relaxed);
  }
  const std::lock_guard lock(mutex_);
  counters.busy_s = busy_s_;
  counters.wait_s = wait_s_;
  return counters;
}

std::vector<CollectiveCount> NetworkGroup::collectives() const {
  const std::lock_guard lock(mutex_);
  return {counts_.begin(), counts_.end()};
}

void NetworkGroup::leave() {
  if (error_ || failures_.failed() || completed_ != issued_) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->link().leave();
  for (const auto end = Clock::now() + kLeaveTime; Clock::now() < end && !failures_.failed();) {
    const bool may_close = std::ranges::all_of(
        lanes_, [](const std::unique_ptr<Lane>& lane) { return lane->link().may_close(); });
    if (may_close) return;
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->link().serve();
    std::this_thread::sleep_for(kLeaveInterval);
  }
}

void NetworkGroup::start_workers() {
  // A waiting worker takes no processor; more workers than processors only get in each other's way.
  const auto count = static_cast<size_t>(
      std::min<int64_t>(static_cast<int64_t>(lanes_.size()), cpu_limits().num_processors()));
  workers_.resize(count);
  num_running_workers_ = count;
  for (size_t i = 0; i < lanes_.size(); ++i) workers_[i % count].lanes.push_back(lanes_[i].get());
  try {
    for (Worker& worker : workers_) {
      worker.polled.reserve(2 * worker.lanes.size());
      threads_.push_back(start_background_thread([this, &worker] { run(worker); }));
    }
  } catch (...) {
    stop_workers();
    throw;
  }
}

void NetworkGroup::stop_workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true, std::memory_order_relaxed);
  }
  issued_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

template <typename Predicate>
void NetworkGroup::wait_until(std::unique_lock<std::mutex>& lock, const Predicate& predicate) {
  while (!predicate()) {
    if (error_ || failures_.failed()) {
      end_workers(lock);
      if (error_) std::rethrow_exception(error_);
      failures_.check();
    }
    completed_changed_.wait_for(lock, kCheckInterval);
    const bool is_running = completed_ != issued_;
    if (is_running && Clock::now() - busy_since_ > timeout_.load(std::memory_order_relaxed) + kStuckTime) {
      end_workers(lock);
      if (!error_) error_ = std::make_exception_ptr(Error(ExitCode::kTryAgain, stuck_message()));
    }
  }
}

void NetworkGroup::end_workers(std::unique_lock<std::mutex>& lock) {
  stopping_.store(true, std::memory_order_relaxed);
  issued_changed_.notify_all();
  const auto have_ended = [&] { return num_running_workers_ == 0; };
  if (!completed_changed_.wait_for(lock, kStuckTime, have_ended)) end_process();
}

std::string NetworkGroup::stuck_message() const {
  const OperationId& id = ring_[(completed_ + 1) % kMaxRunning].id;
  return fmt::format("{}: fabric {} has not returned from a call for {:.0f} s, in {}: its provider hangs",
                     members_.names[static_cast<size_t>(members_.index)], fabric_name(fabric_),
                     seconds_between(busy_since_, Clock::now()), describe(id));
}

void NetworkGroup::end_process() const {
  try {
    failures_.fail_because(members_.ranks[static_cast<size_t>(members_.index)], stuck_message());
  } catch (const Error& error) {
    log_line(LogLevel::kError, error.what());
  }
  std::_Exit(static_cast<int>(ExitCode::kTryAgain));
}

void NetworkGroup::run(Worker& worker) {
  std::exception_ptr error;
  try {
    while (const NetworkOperation* operation = next_operation(worker)) {
      for (Lane* lane : worker.lanes) lane->start(*operation);
      if (!run_lanes(worker)) break;
      complete(worker);
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    --num_running_workers_;
    if (error && !error_) error_ = error;
    count_bytes();
    // A worker that fails stops the others.
    stopping_.store(true, std::memory_order_relaxed);
  }
  completed_changed_.notify_all();
  issued_changed_.notify_all();
}

const NetworkOperation* NetworkGroup::next_operation(const Worker& worker) {
  std::unique_lock lock(mutex_);
  const auto is_due = [&] { return stopping_.load(std::memory_order_relaxed) || issued_ > worker.completed; };
  if (idle_interval_ == milliseconds(0)) {
    issued_changed_.wait(lock, is_due);
  } else {
    while (!issued_changed_.wait_for(lock, idle_interval_, is_due)) {
      lock.unlock();
      for (Lane* lane : worker.lanes) lane->link().serve();
      lock.lock();
    }
  }
  if (stopping_.load(std::memory_order_relaxed)) return nullptr;
  return &ring_[(worker.completed + 1) % kMaxRunning];
}

bool NetworkGroup::run_lanes(Worker& worker) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    bool moved = false;
    bool finished = true;
    for (Lane* lane : worker.lanes) {
      if (!lane->finished()) moved |= lane->advance();
      finished &= lane->finished();
    }
    if (finished) return true;
    if (stopping_.load(std::memory_order_relaxed)) return false;
    failures_.check();
    if (moved) continue;
    if (Clock::now() - begin > timeout_.load(std::memory_order_relaxed)) {
      for (const Lane* lane : worker.lanes) {
        if (!lane->finished()) lane->fail_at_deadline(seconds_between(begin, Clock::now()));
      }
    }
    wait_for_something(worker);
  }
}

void NetworkGroup::wait_for_something(Worker& worker) {
  worker.polled.clear();
  std::chrono::microseconds longest = kCheckInterval;
  for (Lane* lane : worker.lanes) {
    if (!lane->finished()) {
      longest = std::min(longest, lane->prepare_wait(worker.polled));
    } else {
      lane->link().serve();
    }
  }
  const timespec time = {.tv_sec = 0, .tv_nsec = longest.count() * 1000};
  ::ppoll(worker.polled.data(), worker.polled.size(), &time, nullptr);
}

void NetworkGroup::complete(Worker& worker) {
  bool notify = false;
  {
    const std::lock_guard lock(mutex_);
    ++worker.completed;
    Ticket completed = worker.completed;
    for (const Worker& other : workers_) completed = std::min(completed, other.completed);
    if (completed > completed_) {
      const Clock::time_point now = Clock::now();
      count(ring_[completed % kMaxRunning].id, seconds_between(busy_since_, now));
      busy_since_ = now;
      completed_at_ = now;
      completed_ = completed;
      if (completed_ < issued_) {
        mark_position(completed_ + 1, false);
      } else {
        mark_position(completed_, true);
      }
      notify = true;
    }
  }
  if (notify) completed_changed_.notify_all();
}

void NetworkGroup::count(const OperationId& id, double time_s) {
  busy_s_ += time_s;
  CollectiveCount& of_kind = counts_[static_cast<size_t>(id.collective)];
  ++of_kind.num_calls;
  of_kind.bytes += id.total_bytes;
  of_kind.time_s += time_s;
}

void NetworkGroup::mark_position(Ticket ticket, bool is_over) {
  if (position_ == nullptr) return;
  const OperationId& id = ring_[ticket % kMaxRunning].id;
  position_->mark(Activity::kNetwork, {.what = id.label.what,
                                       .number = static_cast<int64_t>(ticket),
                                       .layer = id.label.layer,
                                       .bytes = id.total_bytes,
                                       .is_over = is_over});
  count_bytes();
}

void NetworkGroup::count_bytes() {
  if (position_ == nullptr) return;
  int64_t sent_bytes = 0, received_bytes = 0;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    sent_bytes += lane->counters().sent_bytes.load(std::memory_order_relaxed);
    received_bytes += lane->counters().received_bytes.load(std::memory_order_relaxed);
  }
  position_->count_network(sent_bytes, received_bytes);
}

}  // namespace tessera
