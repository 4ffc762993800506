// Messages of a lane through libfabric: one endpoint of reliable datagrams for all peers.
//
// A header is one tagged message and its payload another; the tag says which of the messages between the two
// members it is, so nothing depends on the order of arrival. Receives are posted as soon as a message begins,
// straight into the operation's memory where the provider touches memory only while it is called. Otherwise
// both go through slots of this link, which are registered once: nothing outside them is ever open to a
// network card, whatever becomes of an operation's buffers.
//
// A payload, unless it is tiny, is sent once its receiver has said that it is awaited, by an empty message.
// So the provider never has to buffer one, however far a sender is ahead, and may send all of it at once.
//
// Every two members keep the connection over which they proved the job's secret. Nothing is sent over it, but
// it ends with its process, which reliable datagrams need not report.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/unique_fd.h"
#include "comm/network/fabric/fabric_endpoint.h"
#include "comm/network/link/lane_link.h"

namespace tessera {

// The tags of a group. They begin at a number derived from its key, so that who does not know it cannot tell
// which messages are awaited; that is no protection from those who can listen.
class FabricTags {
 public:
  enum class Kind : uint64_t { kHeader, kPayload, kReady, kHandshake };

  FabricTags() = default;
  explicit FabricTags(uint64_t secret) : secret_(secret & kMask) {}
  // The tag of the number-th message of this kind that a member sends to another.
  uint64_t tag(Kind kind, int from, uint64_t number) const {
    return secret_ ^ (static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(from) << 40 |
                      (number & ((uint64_t{1} << 40) - 1)));
  }

 private:
  // Some providers keep the uppermost bits to themselves.
  static constexpr uint64_t kMask = (uint64_t{1} << 58) - 1;
  uint64_t secret_ = 0;
};

// A link's peers by member; this member's own entry is unused.
struct FabricPeers {
  int index = 0;  // of this member
  FabricTags tags;
  std::vector<fi_addr_t> addresses;
  std::vector<UniqueFd> sockets;
};

class FabricLink final : public LaneLink {
 public:
  static constexpr int kWindow = 2;  // more go through the caches one after the other

  // is_staged: payloads go through registered slots.
  FabricLink(std::unique_ptr<FabricEndpoint> endpoint, FabricPeers peers, bool is_staged);

  int window() const override { return kWindow; }
  void begin(OutgoingMessage& message) override;
  void begin(IncomingMessage& message) override;
  bool advance(OutgoingMessage& message) override;
  bool advance(IncomingMessage& message) override;
  std::chrono::microseconds prepare_wait(const OutgoingMessage* sent, const IncomingMessage* received,
                                         std::vector<pollfd>& polled) override;
  std::chrono::milliseconds idle_interval() const override { return std::chrono::milliseconds(20); }
  void serve() override;
  void leave() override;
  bool may_close() override;

  // Registered memory of one link.
  static int64_t registered_bytes(const std::string& provider);
  // A link to num_members - 1 peers takes its registered slots and, roughly, the provider's bounce buffers.
  static int64_t buffer_bytes(int num_members, const std::string& provider);

 private:
  using Clock = std::chrono::steady_clock;

  // A transfer that may have to be posted again.
  struct Transfer {
    FabricOp op;
    bool is_posted = true;
    bool is_settled = true;  // the message knows that it is done
    std::byte* data = nullptr;
    int64_t num_bytes = 0;
    uint64_t tag = 0;
  };
  template <typename Message>
  struct Slot {
    Message* message = nullptr;
    std::byte* staging = nullptr;  // header, then payload
    Transfer header;
    Transfer ready;  // its receipt; or, of a message that is received, only its tag and whether it was sent
    Transfer payload;
  };

  static Transfer to_post(const std::byte* data, int64_t num_bytes, uint64_t tag);
  // The transfers of a message from member `from` to member `to`, the number-th between them.
  template <typename Message>
  void prepare(Slot<Message>& slot, const std::byte* header, const std::byte* payload, int from, int to,
               uint64_t number) const;
  bool progress();
  void post(Slot<OutgoingMessage>& slot);
  void post(Slot<IncomingMessage>& slot);
  void settle(Slot<OutgoingMessage>& slot);
  void settle(Slot<IncomingMessage>& slot);
  void check_failed(const Transfer& transfer, int peer, bool while_sending) const;
  void look_for_ended_peers();
  void check_peer(int peer, bool while_sending) const;

  PageBuffer staging_;
  FabricPeers peers_;
  UniqueFd ends_;                            // epoll: the connections of peers that are still there
  std::vector<Clock::time_point> ended_at_;  // [member]; epoch = still there
  int num_there_ = 0;
  std::vector<uint64_t> num_sent_;      // [member], messages so far
  std::vector<uint64_t> num_received_;  // [member], begun
  std::vector<Slot<OutgoingMessage>> sends_;
  std::vector<Slot<IncomingMessage>> receives_;
  int64_t sends_begun_ = 0;
  int64_t receives_begun_ = 0;
  Clock::time_point moved_at_;
  int idle_turns_ = 0;
  std::unique_ptr<FabricEndpoint> endpoint_;  // closed before the memory it may use
};

}  // namespace tessera
