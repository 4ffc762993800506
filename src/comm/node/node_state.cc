#include "comm/node/node_state.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "platform/cpu.h"

namespace tessera {

namespace {

using namespace std::chrono_literals;

// The interval at which a sleeping rank checks that the others are alive.
constexpr auto kSlice = 20ms;
// About 20 microseconds, the cost of a futex wake-up; pointless where ranks have no processors of their own.
constexpr int kSpins = 500;
constexpr int kYields = 4;

// Not the private futex: its wake-ups do not reach other processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds time) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = static_cast<long>(time.count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

bool reached(const CounterCell& cell, uint64_t value) {
  return cell.value.load(std::memory_order_acquire) >= value;
}

// The affinity mask is this rank's own; the quota is that of all ranks of a container.
bool have_processors(int num_ranks) {
  const double num_usable =
      std::min<double>(static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)),
                       cpu_limits().quota.value_or(std::numeric_limits<double>::infinity()));
  return num_usable >= num_ranks;
}

}  // namespace

void publish(CounterCell& cell, uint64_t value) {
  // Sequentially consistent, as in NodeWait::slice: either the sleeper sees the value or this call sees the
  // sleeper.
  cell.value.store(value, std::memory_order_seq_cst);
  if (cell.sleepers.load(std::memory_order_seq_cst) == 0) return;
  cell.wakeups.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(cell.wakeups);
}

NodeState::NodeState(const World& world, const NodeGroupOptions& options, FailureDetector& failures)
    : peers(static_cast<size_t>(world.local_world_size)),
      world_(world),
      ranks_have_processors_(have_processors(size())),
      timeout_(options.timeout),
      position_(options.position),
      failures_(failures) {}

CollectiveCount NodeState::count(WaitKind kind) const {
  const WaitCount& count = waits_[static_cast<size_t>(kind)];
  return {.operation = kind == WaitKind::kBarrier ? "barrier" : "wait",
          .num_calls = count.calls.load(std::memory_order_relaxed),
          .bytes = count.bytes.load(std::memory_order_relaxed),
          .time_s = static_cast<double>(count.time_ns.load(std::memory_order_relaxed)) * 1e-9};
}

void NodeState::add_wait(WaitKind kind, int64_t bytes, std::chrono::nanoseconds time) const {
  WaitCount& count = waits_[static_cast<size_t>(kind)];
  count.calls.fetch_add(1, std::memory_order_relaxed);
  count.bytes.fetch_add(bytes, std::memory_order_relaxed);
  count.time_ns.fetch_add(time.count(), std::memory_order_relaxed);
}

std::string NodeState::describe(int index) const { return describe_rank(rank_of(index), world_.host); }

void NodeState::agree(std::string_view what) {
  const uint64_t number = ++num_operations_;
  OperationRecord& own = slot(index()).records[number % 2];
  own.hash = std::hash<std::string_view>{}(what);
  const size_t length = std::min(what.size(), own.text.size() - 1);
  std::memcpy(own.text.data(), what.data(), length);
  own.text[length] = '\0';
  publish(slot(index()).operations, number);

  // Compares with the ranks that have already arrived, so that a mismatch is found even while others are
  // missing.
  NodeWait wait(*this, WaitKind::kBarrier, {own.text.data()}, 0);
  for (int missing = 0; missing >= 0;) {
    missing = -1;
    for (int i = 0; i < size(); ++i) {
      if (!reached(slot(i).operations, number)) {
        if (missing < 0) missing = i;
        continue;
      }
      const OperationRecord& other = slot(i).records[number % 2];
      if (other.hash == own.hash) continue;
      fail_because(
          i,
          fmt::format(
              "ranks of one node are in different operations: {} is at '{}', {} at '{}' (operation {})",
              describe(index()), own.text.data(), describe(i), other.text.data(), number),
          ExitCode::kInternal);
    }
    if (missing >= 0) wait.slice(slot(missing).operations, missing, number);
  }
  wait.mark_over(number);
}

void NodeState::leave(bool in_order) {
  if (size() > 1 && control.data() != nullptr) {
    RankSlot& own = slot(index());
    if (in_order) {
      own.state.store(RankState::kLeft, std::memory_order_release);
    } else if (own.state.load(std::memory_order_relaxed) == RankState::kThere) {
      const std::optional<Failure> failure = failures_.failure();
      own.culprit.store(failure ? failure->rank : -1, std::memory_order_relaxed);
      own.state.store(RankState::kFailing, std::memory_order_release);
    }
  }
  for (UniqueFd& peer : peers) peer.reset();
}

void NodeState::fail_because(int index, const std::string& evidence, ExitCode code) const {
  if (control.data() != nullptr) {
    RankSlot& own = slot(this->index());
    own.culprit.store(rank_of(index), std::memory_order_relaxed);
    own.state.store(RankState::kFailing, std::memory_order_release);
  }
  failures_.fail_because(rank_of(index), evidence, code);
}

bool NodeState::find_closed_peers(std::array<bool, kMaxLocalRanks>* closed) const {
  std::array<pollfd, kMaxLocalRanks> sockets;
  for (size_t i = 0; i < peers.size(); ++i) {
    // No events requested: only a closed connection is reported. Negative descriptors, such as this rank's
    // own, are ignored.
    sockets[i] = {.fd = peers[i].get(), .events = 0, .revents = 0};
  }
  if (poll(sockets.data(), peers.size(), 0) <= 0) return false;
  for (size_t i = 0; i < peers.size(); ++i) (*closed)[i] = sockets[i].revents != 0;
  return true;
}

void NodeState::blame_closed(int closed, int awaited, std::string_view purpose) const {
  const std::string self = describe(index());
  const std::string meanwhile =
      closed == awaited ? fmt::format("while {} waited for it: {}", self, purpose)
                        : fmt::format("while {} waited for {}: {}", self, describe(awaited), purpose);
  RankState at_end = RankState::kThere;
  int culprit = -1;
  if (control.data() != nullptr) {
    at_end = slot(closed).state.load(std::memory_order_acquire);
    culprit = slot(closed).culprit.load(std::memory_order_relaxed) - rank_of(0);
  }
  if (at_end == RankState::kThere) {
    fail_because(
        closed, fmt::format("{} was lost: its process ended without a word {}", describe(closed), meanwhile));
  }
  if (at_end == RankState::kLeft) {
    fail_because(closed, fmt::format("{} has left in good order {}", describe(closed), meanwhile));
  }
  if (culprit >= 0 && culprit < size() && culprit != index() && culprit != closed) {
    fail_because(culprit,
                 fmt::format("{} failed, as {} found {}", describe(culprit), describe(closed), meanwhile));
  }
  fail_because(closed, fmt::format("{} ended after an error {}", describe(closed), meanwhile));
}

std::string NodeWait::purpose() const {
  return bytes_ > 0 ? fmt::format("{}, {}", to_string(label_), count_of(bytes_, "byte")) : to_string(label_);
}

void NodeWait::mark(int index, uint64_t value, bool is_over) const {
  if (state_.position() == nullptr) return;
  state_.position()->mark(Activity::kNode, {.what = label_.what,
                                            .number = static_cast<int64_t>(value),
                                            .layer = label_.layer,
                                            .bytes = bytes_,
                                            .peer = is_over ? -1 : state_.rank_of(index),
                                            .is_over = is_over});
}

void NodeWait::mark_over(uint64_t value) const { mark(-1, value, true); }

void NodeWait::until(CounterCell& cell, int index, uint64_t value) {
  wait_until(cell, index, value);
  mark_over(value);
}

void NodeWait::wait_until(CounterCell& cell, int index, uint64_t value) {
  if (reached(cell, value)) return;
  if (state_.ranks_have_processors()) {
    for (int i = 0; i < kSpins; ++i) {
      _mm_pause();
      if (reached(cell, value)) return;
    }
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (reached(cell, value)) return;
  }
  while (!slice(cell, index, value)) {
  }
}

bool NodeWait::slice(CounterCell& cell, int index, uint64_t value) {
  if (reached(cell, value)) return true;
  if (!started_) {
    started_ = true;
    begin_ = Clock::now();
    mark(index, value, false);
  }
  state_.failures().check();
  check_peers(cell, index, value);
  if (Clock::now() - begin_ >= state_.timeout()) {
    const std::string seconds = fmt::format("{:.1f} s", static_cast<double>(state_.timeout().count()) / 1e3);
    state_.fail_because(index, fmt::format("{} waited {} for {}: {}", state_.describe(state_.index()),
                                           seconds, state_.describe(index), purpose()));
  }
  cell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = cell.wakeups.load(std::memory_order_seq_cst);
  if (cell.value.load(std::memory_order_seq_cst) < value) futex_wait(cell.wakeups, seen, kSlice);
  cell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return reached(cell, value);
}

void NodeWait::check_peers(const CounterCell& cell, int index, uint64_t value) const {
  int lost = -1, left = -1, failing = -1;
  state_.for_closed_peers([&](int i) {
    switch (state_.slot(i).state.load(std::memory_order_acquire)) {
      case RankState::kThere:
        lost = i;
        break;
      case RankState::kLeft:
        if (i == index) left = i;
        break;
      case RankState::kFailing:
        failing = i;
        break;
    }
  });
  // A killed rank explains those that failed because of it. Counts it published before it died are valid.
  const int culprit = lost >= 0 ? lost : left >= 0 ? left : failing;
  if (culprit >= 0 && !reached(cell, value)) state_.blame_closed(culprit, index, purpose());
}

}  // namespace tessera
