// Moves the messages of one lane: the interface between operations (network_lane.h) and a transport.
//
// A lane begins messages in the order of its operation, up to window() of them in each direction, and
// advances the earliest one. Only the lane's thread calls a link, and no call blocks.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/network/link/wire_message.h"

namespace tessera {

// A header and a payload, which may be empty. The lane fills in peer, payload and payload_bytes (and, to
// send, the header); the link counts what has been done.
struct OutgoingMessage {
  int peer = -1;
  WireHeader header{};
  const std::byte* payload = nullptr;
  int64_t payload_bytes = 0;
  int64_t header_done = 0;
  int64_t payload_done = 0;

  bool done() const {
    return header_done == static_cast<int64_t>(sizeof(WireHeader)) && payload_done == payload_bytes;
  }
};

struct IncomingMessage {
  int peer = -1;
  WireHeader header{};
  std::byte* payload = nullptr;
  int64_t payload_bytes = 0;  // expected
  int64_t header_done = 0;
  int64_t payload_done = 0;
  uint32_t crc = 0;  // of the payload_done bytes

  bool has_header() const { return header_done == static_cast<int64_t>(sizeof(WireHeader)); }
  bool done() const { return has_header() && payload_done == payload_bytes; }
};

// Thrown by a link: the peer is gone, or the transport says so.
struct LinkLoss {
  int peer;
  bool while_sending;
  std::string reason;
};

class LaneLink {
 public:
  LaneLink() = default;
  virtual ~LaneLink() = default;
  LaneLink(const LaneLink&) = delete;
  LaneLink& operator=(const LaneLink&) = delete;

  // Messages in each direction that may have begun and not be done.
  virtual int window() const = 0;

  // The message and its payload must stay where they are until it is done, or until the last call of a
  // method: between calls the link does not touch them.
  virtual void begin(OutgoingMessage& message) = 0;
  virtual void begin(IncomingMessage& message) = 0;

  // Both move what they can and return whether they moved anything; LinkLoss if a peer is gone. The second
  // returns as soon as the header is complete, so that it is checked before the rest is trusted.
  virtual bool advance(OutgoingMessage& message) = 0;
  virtual bool advance(IncomingMessage& message) = 0;

  // Called when nothing moves: adds what the messages (nullptr = none) wait for, and returns for how long a
  // wait for that may last at most. LinkLoss if a peer is gone.
  virtual std::chrono::microseconds prepare_wait(const OutgoingMessage* sent, const IncomingMessage* received,
                                                 std::vector<pollfd>& polled) = 0;

  // The interval at which serve() should be called while no operation runs; zero = never.
  virtual std::chrono::milliseconds idle_interval() const { return {}; }
  // Answers needs of peers for which there is no message, such as acknowledging again.
  virtual void serve() {}

  // Called once, after the last operation: tells the peers that nothing more will be sent.
  virtual void leave() {}
  // Whether peers are done with this side; call serve() until then.
  virtual bool may_close() { return true; }
};

}  // namespace tessera
