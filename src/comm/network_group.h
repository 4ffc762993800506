// Ranks on different nodes, over TCP. Operations are asynchronous, run one after the other in the order they
// were issued, and must be issued in the same order by all members.
//
// Every message carries its number, operation, label, size and a CRC32C of the payload; a member that is
// doing something else is found at once (fail_because() names both sides).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/op_label.h"
#include "comm/part.h"
#include "comm/rank_position.h"
#include "comm/rendezvous.h"
#include "comm/store_client.h"

namespace tessera {

struct NetworkOptions {
  std::chrono::milliseconds timeout{60'000};  // of every operation, counted from when it reaches its turn
  int connections = 4;                        // per pair of members
  std::string interface;                      // "" = the one that reaches the store
  RankPosition* position = nullptr;           // told of every operation; must outlive the group
};

struct NetworkCounters {
  int64_t sent_bytes = 0;  // payload
  int64_t received_bytes = 0;
  double busy_s = 0;  // the operations' own time
  double wait_s = 0;  // of it, time wait() stood still
};

class NetworkGroup {
 public:
  // A running operation; cheap to copy. Operations that are issued and not over number kMaxRunning at most:
  // issuing one more waits for the oldest.
  using Ticket = uint64_t;
  static constexpr int kMaxRunning = 256;

  // Collective over `ranks` (ranks of the job, this one among them), which `name` distinguishes from other
  // groups. Addresses are exchanged through the store; `store` and `failures` must outlive this. A group of
  // one needs neither.
  NetworkGroup(std::string name, std::vector<int> ranks, int my_rank, StoreClient* store,
               const NetworkOptions& options, FailureDetector& failures);
  // With another way to exchange addresses than the store.
  NetworkGroup(std::string name, std::vector<int> ranks, int my_rank, Rendezvous& rendezvous,
               const NetworkOptions& options, FailureDetector& failures);
  // Operations that are not over are abandoned, which the other members see as a lost connection.
  ~NetworkGroup();

  int size() const;
  int index() const;

  // Buffers must stay as they are until the operation is over.
  // Part i of `buffer` (bytes) goes from member i to all others, in place. parts.size() = size(). Cost: every
  // byte is received once.
  Ticket all_gather(std::span<std::byte> buffer, std::span<const Part> parts, const OpLabel& label);
  // part[index] of `buffer` becomes the sum over the members in their order, in float32; contributions travel
  // as bf16 (this member's own is not rounded). The other parts are left alone. Cost: (n - 1) / n of 2 bytes
  // per element sent and received.
  Ticket reduce_scatter(std::span<float> buffer, std::span<const Part> parts, const OpLabel& label);
  // The same with contributions in float32, exact.
  Ticket reduce_scatter_f32(std::span<float> buffer, std::span<const Part> parts, const OpLabel& label);
  // buffer of member `root` to all, along a chain: every byte is sent and received once at most by a member.
  Ticket broadcast(std::span<std::byte> buffer, int root, const OpLabel& label);

  // Until the operation and all before it are over. Throws what made one fail; then none runs any more, and
  // their buffers may go.
  void wait(Ticket ticket);
  void wait_for_all();  // that were issued
  bool done(Ticket ticket) const;
  // Ends what is not over, which the other members see as a lost connection when the group goes. Behind it no
  // buffer is touched; operations, if there were any to end, can only fail.
  void abandon() noexcept;

  NetworkCounters counters() const;
  // At most, of a member of a group of num_members: chunks on their way, of every connection.
  static int64_t buffer_bytes(int num_members, int connections);
  // Of the operations that run from now on.
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  static std::unique_ptr<Rendezvous> rendezvous_of(StoreClient* store, const NetworkOptions& options);
  void check_parts(std::span<const Part> parts, size_t num_elements) const;

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
