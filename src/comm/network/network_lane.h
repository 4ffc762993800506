// One link to every other member of a group (lane_link.h), and the state of one operation on it.
//
// An operation's parts are cut into chunks, which are dealt to the lanes round-robin; a lane sends and
// receives its own and knows nothing of the others. Every part has at least one message, even if empty, so
// that members in different operations notice in lane 0.
//
//   transfer    for each chunk, for step s = 1 .. n-1: member k sends to (k + s) mod n and receives from
//               (k - s) mod n. Both proceed independently, in this order: the earliest unfinished message has
//               a sender and a receiver working on it, so there is no deadlock.
//   broadcast   along the chain root, root + 1, ...: a chunk is passed on once it has arrived.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "comm/network/link/coded_sum.h"
#include "comm/network/link/lane_link.h"
#include "comm/network/link/network_mesh.h"
#include "comm/network/link/wire_message.h"
#include "comm/ranks/failure.h"
#include "comm/ranks/part.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {

// An operation as issued. Parts are in elements of the buffer.
struct NetworkOperation {
  OperationId id;
  std::byte* data = nullptr;
  std::vector<Part> parts;
  std::byte* received = nullptr;  // of an all_to_all
  std::vector<Part> received_parts = {};
  GradientFeedback feedback = {};  // of a reduce_scatter in int8 or int4
};

// Payload bytes, whole messages.
struct LaneCounters {
  std::atomic<int64_t> sent_bytes = 0;
  std::atomic<int64_t> received_bytes = 0;
};

class Lane {
 public:
  // `failures` and `members` must outlive it.
  Lane(int number, int num_lanes, const Members& members, std::unique_ptr<LaneLink> link,
       FailureDetector& failures);

  // `operation` must stay valid until finished().
  void start(const NetworkOperation& operation);
  // Sends and receives what it can without blocking; returns whether it moved anything. fail_because() if a
  // peer is gone, does something else or sends corrupt data.
  bool advance();
  bool finished() const { return sends_.finished() && receives_.finished(); }
  // Adds what advance() waits for next, at most two entries; returns the longest time to wait for it.
  std::chrono::microseconds prepare_wait(std::vector<pollfd>& polled);
  // Blames the peer this lane waits for, and says how far the operation got.
  [[noreturn]] void fail_at_deadline(double seconds) const;

  LaneLink& link() { return *link_; }
  const LaneCounters& counters() const { return counters_; }
  // Bytes of staging for the chunks being sent and for other members' chunks to be added to this one's, over
  // a link with this window.
  static int64_t buffer_bytes(int num_members, int window);

 private:
  struct Sent {
    int64_t chunk = 0;
    OutgoingMessage message;
  };
  struct Received {
    int64_t chunk = 0;
    int step = 1;
    bool is_checked = false;  // the header
    IncomingMessage message;
  };
  // The next message to begin: chunk and step.
  struct Cursor {
    bool at_end = true;
    int64_t chunk = 0;
    int step = 1;
    int peer = -1;
  };
  // Messages of the operation in one direction.
  template <typename T>
  struct Window {
    explicit Window(int size) : ring(static_cast<size_t>(size)) {}
    bool finished() const { return next.at_end && begun == done; }
    bool is_empty() const { return begun == done; }
    bool is_full() const { return begun - done == std::ssize(ring); }
    T& first() { return ring[static_cast<size_t>(done) % ring.size()]; }
    const T& first() const { return ring[static_cast<size_t>(done) % ring.size()]; }
    T& begin_next() { return ring[static_cast<size_t>(begun++) % ring.size()] = T{}; }
    void restart(int64_t first_chunk) {
      next = {.at_end = true, .chunk = first_chunk};
      begun = done = bytes_done = 0;
    }

    Cursor next;
    std::vector<T> ring;
    int64_t begun = 0;
    int64_t done = 0;
    int64_t bytes_done = 0;  // payload
  };
  struct Range {
    int64_t begin;
    int64_t size;
  };

  const CollectiveKind& kind() const { return kind_of(operation_->id.collective); }
  bool sends_every_part() const;
  bool is_coded() const { return operation_->id.collective == Collective::kAllGatherInt8; }
  int64_t wire_bytes(int64_t num_elements) const;
  int64_t num_chunks(const Part& part) const;
  int64_t max_chunks() const;
  Range chunk_range(const Part& part, int64_t chunk) const;
  const Part& sent_part(int peer) const;
  const Part& received_part(int peer) const;

  int num_steps() const;
  bool is_sender() const;
  bool is_receiver() const;
  // Advances to the next message that exists.
  void settle_on_message(Cursor& cursor, bool sending);

  bool advance_send();
  void begin_send();
  const std::byte* staged_payload(const Range& range, int64_t chunk, int64_t ordinal);
  bool advance_receive();
  void begin_receive();
  void check_header(const Received& received);
  void close_receive(const Received& received);
  void sum_chunk(int64_t chunk);
  void sum_coded_chunk(const Range& range);
  void decode_chunk(const Received& received);
  [[noreturn]] void lost(const LinkLoss& loss) const;
  const std::string& name(int member) const { return members_.names[static_cast<size_t>(member)]; }
  int64_t num_receive_slots() const;

  const int number_;
  const int num_lanes_;
  const Members& members_;
  FailureDetector& failures_;

  const NetworkOperation* operation_ = nullptr;
  int64_t chunks_received_ = 0;             // broadcast: chunks that may be passed on
  PageBuffer send_staging_;                 // [window] chunks, rounded or coded
  std::vector<int64_t> coded_chunk_;        // all_gather in int8, by slot: the chunk in send_staging_
  PageBuffer receive_staging_;              // [num_receive_slots()] chunks
  std::vector<const std::byte*> payloads_;  // of the chunk to be summed, [member]; none of this member
  std::vector<RankInput> contributions_;
  LaneCounters counters_;
  Window<Sent> sends_;
  Window<Received> receives_;
  const std::unique_ptr<LaneLink> link_;  // closed before the memory of its messages
};

}  // namespace tessera
