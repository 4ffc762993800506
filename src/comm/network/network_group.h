// Collectives between ranks on different nodes, over TCP or libfabric. Operations are asynchronous, run one
// after another in the order issued, and must be issued in the same order by all members.
//
// Every message carries its number, operation, label, size and a CRC32C of the payload, so a member in a
// different operation is detected at once (fail_because() names both sides).
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/float_types.h"
#include "comm/network/link/coded_sum.h"
#include "comm/network/link/network_mesh.h"
#include "comm/network/link/wire_message.h"
#include "comm/ranks/collective_count.h"
#include "comm/ranks/failure.h"
#include "comm/ranks/op_label.h"
#include "comm/ranks/part.h"
#include "comm/ranks/rank_position.h"
#include "comm/ranks/rendezvous.h"

namespace tessera {

struct NetworkCounters {
  int64_t sent_bytes = 0;  // payload
  int64_t received_bytes = 0;
  double busy_s = 0;  // while an operation was running
  double wait_s = 0;  // part of busy_s that wait() spent blocked

  // The difference to earlier counters, and the sum with those of others.
  NetworkCounters since(const NetworkCounters& before) const {
    return {sent_bytes - before.sent_bytes, received_bytes - before.received_bytes, busy_s - before.busy_s,
            wait_s - before.wait_s};
  }
  void add(const NetworkCounters& other) {
    sent_bytes += other.sent_bytes;
    received_bytes += other.received_bytes;
    busy_s += other.busy_s;
    wait_s += other.wait_s;
  }
};

class Lane;
struct NetworkOperation;

// Operations are numbered from 1, kept in a ring and carried out by worker threads. Each worker runs its
// lanes (network_lane.h) through all of them in order; the slowest worker determines which are over.
class NetworkGroup {
 public:
  // A running operation; cheap to copy. At most kMaxRunning operations may be issued and unfinished: issuing
  // another waits for the oldest.
  using Ticket = uint64_t;
  static constexpr int kMaxRunning = 1024;  // pieces of 17 billion weights (shard/outer/outer_plan.h)

  // Collective over `ranks` (ranks of the job, including this one); `name` distinguishes the group from
  // others. Addresses are published through `rendezvous` now, which a group of one does not need; `failures`
  // must outlive this.
  NetworkGroup(std::string name, std::vector<int> ranks, int my_rank, Rendezvous* rendezvous,
               const NetworkOptions& options, FailureDetector& failures);
  // Unfinished operations are abandoned, which the other members see as a lost connection. Otherwise, over a
  // fabric whose acknowledgements need both sides, waits half a second at most for the other members.
  ~NetworkGroup();

  NetworkGroup(const NetworkGroup&) = delete;
  NetworkGroup& operator=(const NetworkGroup&) = delete;

  int size() const { return members_.size(); }
  int index() const { return members_.index; }

  // Buffers must stay valid and unchanged until the operation is over.
  // Sends part i of `buffer` (bytes) from member i to all others, in place. parts.size() = size(). Cost:
  // every byte is received once.
  Ticket all_gather(std::span<std::byte> buffer, std::span<const Part> parts, const OpLabel& label) {
    return issue(Collective::kAllGather, buffer, parts, label);
  }
  // An all-gather of bf16 values that travel as blocks of int8 (int8_blocks.h), counted from the start of a
  // part: the others' parts arrive rounded, this member's own is unchanged. Cost: about 1.03 bytes per
  // element.
  Ticket all_gather_int8(std::span<bf16> buffer, std::span<const Part> parts, const OpLabel& label) {
    return issue(Collective::kAllGatherInt8, std::as_writable_bytes(buffer), parts, label);
  }
  // parts[index()] of `buffer` becomes the sum over the members, in member order and in float32;
  // contributions travel as bf16 (this member's own is not rounded). The other parts are unchanged. Cost: (n
  // - 1) / n of 2 bytes per element sent and received.
  Ticket reduce_scatter(std::span<float> buffer, std::span<const Part> parts, const OpLabel& label) {
    return issue(Collective::kReduceScatterBf16, std::as_writable_bytes(buffer), parts, label);
  }
  // A reduce-scatter whose contributions are sent as float32, without rounding.
  Ticket reduce_scatter_f32(std::span<float> buffer, std::span<const Part> parts, const OpLabel& label) {
    return issue(Collective::kReduceScatterF32, std::as_writable_bytes(buffer), parts, label);
  }
  // A reduce-scatter whose contributions are sent as blocks of int8 or int4 (gradient_blocks.h), counted from
  // the start of a part, with error feedback: `feedback.errors` has one value for each element of the buffer
  // and is used until the operation is over. This member's own contribution is not rounded. Cost: 1.03 or
  // 0.53 bytes per element instead of 2.
  Ticket reduce_scatter_coded(GradientCode code, std::span<float> buffer, const GradientFeedback& feedback,
                              std::span<const Part> parts, const OpLabel& label) {
    return issue(
        code == GradientCode::kInt8 ? Collective::kReduceScatterInt8 : Collective::kReduceScatterInt4,
        std::as_writable_bytes(buffer), parts, label, feedback);
  }
  // parts[index()] of `buffer` becomes the sum over the members, in member order and in float32, rounded
  // once; the other parts are unchanged. Cost: as reduce_scatter.
  Ticket reduce_scatter_of_bf16(std::span<bf16> buffer, std::span<const Part> parts, const OpLabel& label) {
    return issue(Collective::kReduceScatterOfBf16, std::as_writable_bytes(buffer), parts, label);
  }
  // Member i gets sent_parts[i] of `sent` as received_parts[index()] of its `received`, which has that size;
  // a member's own part is not moved. Cost: every other part is sent and received once.
  Ticket all_to_all(std::span<const std::byte> sent, std::span<const Part> sent_parts,
                    std::span<std::byte> received, std::span<const Part> received_parts,
                    const OpLabel& label);
  // Sends the buffer of member `root` to all others along a chain: a member sends and receives every byte at
  // most once.
  Ticket broadcast(std::span<std::byte> buffer, int root, const OpLabel& label);

  // Waits until the operation and all before it are over. Throws the error that made one fail; by then none
  // is running, and their buffers may be freed.
  void wait(Ticket ticket);
  void wait_for_all();  // issued so far
  bool done(Ticket ticket) const;
  // Aborts unfinished operations, which the other members see as a lost connection once the group is
  // destroyed. No buffer is touched afterwards; if there were any to abort, all later operations fail.
  void abandon() noexcept;
  // Call before freeing buffers: waits for what has been issued, unless an exception is passing, and abandons
  // the rest.
  void release_buffers() noexcept;

  NetworkCounters counters() const;
  // By kind: of the operations that are over, the time each was the oldest running one; these add up to
  // busy_s. Any thread may call it.
  std::vector<CollectiveCount> collectives() const;
  // Upper bound of a member's memory in a group of num_members: the chunks in flight on every connection and,
  // over a fabric, what its provider keeps; auto counts as a fabric.
  static int64_t buffer_bytes(int num_members, int connections, const Fabric& fabric);
  // Applies to operations that start running from now on.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Worker {
    std::vector<Lane*> lanes;
    std::vector<pollfd> polled;
    Ticket completed = 0;
  };

  Ticket issue(Collective collective, std::span<std::byte> buffer, std::span<const Part> parts,
               const OpLabel& label, const GradientFeedback& feedback = {});
  // `data` and `received` are those of NetworkOperation. In a group of one every operation is over at once.
  Ticket issue(Collective collective, std::byte* data, std::span<const Part> parts, int root,
               const OpLabel& label, const GradientFeedback& feedback = {}, std::byte* received = nullptr,
               std::span<const Part> received_parts = {});
  void check_parts(std::span<const Part> parts, size_t num_elements) const;
  // After the workers have ended: in good order, all operations over.
  void leave();
  void start_workers();
  void stop_workers();
  // Throws the error that ended the workers, or a failure elsewhere. By then no worker touches a buffer: the
  // caller may be about to free them.
  template <typename Predicate>
  void wait_until(std::unique_lock<std::mutex>& lock, const Predicate& predicate);
  // Returns once no worker touches a buffer.
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
  Fabric fabric_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::chrono::milliseconds idle_interval_{0};  // of the links
  std::vector<Worker> workers_;

  mutable std::mutex mutex_;
  std::condition_variable issued_changed_;
  std::condition_variable completed_changed_;
  std::vector<NetworkOperation> ring_;  // [kMaxRunning]; empty in a group of one
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
