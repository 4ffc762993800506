// One connection to every other member of a group, and the state of one operation on it.
//
// An operation's parts are cut into chunks, which are dealt to the lanes round-robin; a lane sends and
// receives its own and knows nothing of the others. Every part has at least one message, even if empty, so
// that members in different operations notice in lane 0.
//
//   exchange    for each chunk, for step s = 1 .. n-1: member k sends to (k + s) mod n and receives from
//               (k - s) mod n. Both proceed independently, in this order: the earliest unfinished message has
//               a sender and a receiver working on it, so there is no deadlock.
//   broadcast   along the chain root, root + 1, ...: a chunk is passed on once it has arrived.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "comm/failure.h"
#include "comm/network/coded_sum.h"
#include "comm/network/network_mesh.h"
#include "comm/network/wire_message.h"
#include "comm/part.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {

// An operation as issued. Parts are in elements of the buffer.
struct NetworkOperation {
  OperationId id;
  std::byte* data = nullptr;
  std::vector<Part> parts;
  GradientFeedback feedback = {};  // of a reduce_scatter in int8 or int4
};

// Payload bytes, whole messages.
struct LaneCounters {
  std::atomic<int64_t> sent_bytes = 0;
  std::atomic<int64_t> received_bytes = 0;
};

class Lane {
 public:
  // sockets[member]; those of this lane. `failures` and `members` must outlive it.
  Lane(int number, int num_lanes, const Members& members, std::vector<UniqueFd> sockets,
       FailureDetector& failures);

  // `operation` must stay valid until finished().
  void start(const NetworkOperation& operation);
  // Sends and receives what it can without blocking; returns whether that was anything. fail_because() if a
  // peer is gone, does something else or sends corrupt data.
  bool advance();
  bool finished() const { return send_.finished && receive_.finished; }
  // Adds what advance() waits for next, at most two entries.
  void add_polled(std::vector<pollfd>& polled) const;
  // Blames the peer this lane waits for, and says how far the operation got.
  [[noreturn]] void fail_at_deadline(double seconds) const;

  const LaneCounters& counters() const { return counters_; }
  // Staging for the chunk being sent and for those of the other members that are added to this one's.
  static int64_t buffer_bytes(int num_members);

 private:
  // Progress of sending or receiving: the current message (chunk, step) and how much of it is done.
  struct Cursor {
    bool finished = true;
    int64_t chunk = 0;
    int step = 1;
    bool open = false;  // the message has begun
    int peer = -1;
    int64_t header_done = 0;
    int64_t payload_done = 0;
    int64_t payload_bytes = 0;
    std::byte* payload = nullptr;
    WireHeader header{};
    uint32_t crc = 0;        // receiving: of the payload so far
    int64_t total_done = 0;  // payload bytes of the operation
  };
  struct Range {
    int64_t begin;
    int64_t size;
  };

  bool is_reduce() const;
  bool is_coded() const { return operation_->id.collective == Collective::kAllGatherInt8; }
  // Of a reduce_scatter whose contributions travel as codes.
  std::optional<GradientCode> gradient_code() const;
  int64_t wire_bytes(int64_t num_elements) const;
  int64_t memory_element_bytes() const;
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
  void next_message(Cursor& cursor, bool sending);

  bool advance_send();
  void open_send();
  bool advance_receive();
  void open_receive();
  void check_header();
  void close_receive();
  void sum_chunk();
  void sum_coded_chunk(const Range& range);
  void decode_chunk();
  [[noreturn]] void lost(const Cursor& cursor, const char* verb, const std::string& reason) const;
  const std::string& name(int member) const { return members_.names[static_cast<size_t>(member)]; }
  int fd(int member) const { return sockets_[static_cast<size_t>(member)].get(); }
  std::byte* contribution(int member) const;

  const int number_;
  const int num_lanes_;
  const Members& members_;
  std::vector<UniqueFd> sockets_;
  FailureDetector& failures_;

  const NetworkOperation* operation_ = nullptr;
  Cursor send_;
  Cursor receive_;
  int64_t chunks_received_ = 0;  // broadcast: chunks that may be passed on
  PageBuffer send_staging_;      // one chunk, rounded or coded
  int64_t coded_chunk_ = -1;     // all_gather in int8: the chunk in send_staging_
  PageBuffer receive_staging_;   // one chunk of every member; of one, coded
  std::vector<RankInput> contributions_;
  LaneCounters counters_;
};

}  // namespace tessera
