// The worker threads of a network group. Operations are numbered from 1, kept in a ring and run one after
// another. Each worker runs its lanes (network_lane.h) through all of them in order; the slowest worker
// determines which are over.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/network/link/lane_link.h"
#include "comm/network/link/network_mesh.h"
#include "comm/network/network_group.h"
#include "comm/network/network_lane.h"
#include "comm/ranks/collective_count.h"
#include "comm/ranks/failure.h"
#include "comm/ranks/rank_position.h"

namespace tessera {

class OperationRunner {
 public:
  using Ticket = NetworkGroup::Ticket;

  // A lane for each of the links. `failures` must outlive this.
  OperationRunner(Members members, std::string fabric, std::vector<std::unique_ptr<LaneLink>> links,
                  const NetworkOptions& options, FailureDetector& failures);
  ~OperationRunner();

  const Members& members() const { return members_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // `data` and `received` are those of NetworkOperation. In a group of one every operation is over at once.
  Ticket issue(Collective collective, std::byte* data, std::span<const Part> parts, int root,
               const OpLabel& label, const GradientFeedback& feedback = {}, std::byte* received = nullptr);

  // As those of NetworkGroup.
  void wait(Ticket ticket);
  void wait_for_all();
  bool done(Ticket ticket) const;
  void abandon();
  NetworkCounters counters() const;
  std::vector<CollectiveCount> collectives() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMaxRunning = NetworkGroup::kMaxRunning;

  struct Worker {
    std::vector<Lane*> lanes;
    std::vector<pollfd> polled;
    Ticket completed = 0;
  };

  // After the workers have ended: in good order, all operations over.
  void leave();
  void start_workers();
  void stop_workers();
  // Throws the error that ended the workers, or a failure elsewhere. By then no worker touches a buffer any
  // more: the caller may be about to free them.
  template <typename Predicate>
  void wait_until(std::unique_lock<std::mutex>& lock, const Predicate& predicate);
  // Returns once no worker touches a buffer any more.
  void end_workers(std::unique_lock<std::mutex>& lock);
  std::string stuck_message() const;
  // Buffers cannot be freed while a worker may still touch them.
  [[noreturn]] void end_process() const;

  // Body of a worker thread.
  void run(Worker& worker);
  // Waits for the next operation; nullptr = there are no more.
  const NetworkOperation* next_operation(const Worker& worker);
  // Whether the operation was completed.
  bool run_lanes(Worker& worker);
  static void wait_for_something(Worker& worker);
  void complete(Worker& worker);

  // Call these with the mutex held.
  void count(const OperationId& id, double time_s);
  void mark_position(Ticket ticket, bool is_over);
  void count_bytes();

  std::atomic<std::chrono::milliseconds> timeout_;
  RankPosition* const position_;
  FailureDetector& failures_;
  const Members members_;
  const std::string fabric_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::chrono::milliseconds idle_interval_{0};  // of the links
  std::vector<Worker> workers_;

  mutable std::mutex mutex_;
  std::condition_variable issued_changed_;
  std::condition_variable completed_changed_;
  std::array<NetworkOperation, kMaxRunning> ring_;
  Ticket issued_ = 0;
  Ticket completed_ = 0;
  Clock::time_point busy_since_;  // while operations run: start of the time not yet in busy_s_
  Clock::time_point completed_at_;
  double busy_s_ = 0;
  double wait_s_ = 0;
  std::array<CollectiveCount, kCollectives.size()> counts_;  // by Collective
  std::exception_ptr error_;
  size_t num_running_workers_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera
