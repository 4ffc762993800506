#include "comm/network/fabric/fabric_link.h"

#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "comm/network/fabric/fabric_choice.h"
#include "comm/network/link/chunk_count.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kFabricHeaderBytes = static_cast<int64_t>(sizeof(WireHeader));
// A header, padded to cache lines, and the largest payload: chunks are rounded up to a multiple of a block.
constexpr int64_t kSlotHeaderBytes = 128;
constexpr int64_t kSlotBytes = kSlotHeaderBytes + kMaxChunkBytes + (1 << 12);
constexpr int64_t kStagingSlotsBytes = 2 * FabricLink::kWindow * kSlotBytes;
// Memory that providers allocate per endpoint, measured with tcp;ofi_rxm, and per peer of one.
constexpr int64_t kEndpointBytes = 6 << 20;
constexpr int64_t kPeerBytes = 64 << 10;

// Payloads of at most this size do not wait until they are awaited: providers buffer them as they do headers.
constexpr int64_t kMaxUnaskedBytes = 1024;

// Within this time a failure elsewhere ends a wait.
constexpr milliseconds kLongestFabricWait{20};
// Where a provider has nothing to wait for: first other threads have their turn, then the thread sleeps.
constexpr int kTurnsBeforeSleep = 50;
constexpr microseconds kSleep{50};
// After a peer has ended, what it sent may still be on its way.
constexpr milliseconds kGraceOfTheEnded{250};

}  // namespace

FabricLink::FabricLink(std::unique_ptr<FabricEndpoint> endpoint, FabricPeers peers, bool is_staged)
    : peers_(std::move(peers)),
      ends_(::epoll_create1(EPOLL_CLOEXEC)),
      ended_at_(peers_.sockets.size()),
      num_sent_(peers_.sockets.size()),
      num_received_(peers_.sockets.size()),
      sends_(kWindow),
      receives_(kWindow),
      endpoint_(std::move(endpoint)) {
  if (!ends_) fail_errno(ExitCode::kIoError, errno, "cannot watch the connections between nodes");
  for (size_t member = 0; member < peers_.sockets.size(); ++member) {
    if (!peers_.sockets[member]) continue;
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.u64 = member}};
    if (::epoll_ctl(ends_.get(), EPOLL_CTL_ADD, peers_.sockets[member].get(), &event) != 0) {
      fail_errno(ExitCode::kIoError, errno, "cannot watch the connections between nodes");
    }
    ++num_there_;
  }
  if (!is_staged) return;
  staging_ = PageBuffer(kStagingSlotsBytes);
  endpoint_->register_memory(staging_.as<std::byte>());
  std::byte* slot = staging_.data();
  for (size_t i = 0; i < sends_.size(); ++i) {
    sends_[i].staging = std::exchange(slot, slot + kSlotBytes);
    receives_[i].staging = std::exchange(slot, slot + kSlotBytes);
  }
}

int64_t FabricLink::registered_bytes(const std::string& provider) {
  return fabric_moves_in_calls_only(provider) ? 0 : kStagingSlotsBytes;
}

int64_t FabricLink::buffer_bytes(int num_members, const std::string& provider) {
  return registered_bytes(provider) + kEndpointBytes + (num_members - 1) * kPeerBytes;
}

// ---- Messages

FabricLink::Transfer FabricLink::to_post(const std::byte* data, int64_t num_bytes, uint64_t tag) {
  Transfer transfer;
  transfer.is_posted = false;
  transfer.is_settled = false;
  transfer.data = const_cast<std::byte*>(data);
  transfer.num_bytes = num_bytes;
  transfer.tag = tag;
  return transfer;
}

template <typename Message>
void FabricLink::prepare(Slot<Message>& slot, const std::byte* header, const std::byte* payload, int from,
                         int to, uint64_t number) const {
  const FabricTags& tags = peers_.tags;
  const int64_t payload_bytes = slot.message->payload_bytes;
  slot.header = to_post(header, kFabricHeaderBytes, tags.tag(FabricTags::Kind::kHeader, from, number));
  slot.ready = slot.payload = Transfer();
  if (payload_bytes > kMaxUnaskedBytes) {
    slot.ready = to_post(header, 0, tags.tag(FabricTags::Kind::kReady, to, number));
  }
  if (payload_bytes > 0) {
    slot.payload = to_post(payload, payload_bytes, tags.tag(FabricTags::Kind::kPayload, from, number));
  }
}

void FabricLink::begin(OutgoingMessage& message) {
  Slot<OutgoingMessage>& slot = sends_[static_cast<size_t>(sends_begun_++ % kWindow)];
  slot.message = &message;
  const uint64_t number = num_sent_[static_cast<size_t>(message.peer)]++;
  const auto* header = reinterpret_cast<const std::byte*>(&message.header);
  const std::byte* payload = message.payload;
  if (slot.staging != nullptr) {
    std::memcpy(slot.staging, header, sizeof(WireHeader));
    if (message.payload_bytes > 0) {
      std::memcpy(slot.staging + kSlotHeaderBytes, payload, static_cast<size_t>(message.payload_bytes));
    }
    header = slot.staging;
    payload = slot.staging + kSlotHeaderBytes;
  }
  prepare(slot, header, payload, peers_.index, message.peer, number);
  // Nobody says that a payload is awaited that goes unasked.
  if (slot.ready.is_posted) slot.ready.op.state = FabricOp::State::kDone;
  post(slot);
}

void FabricLink::begin(IncomingMessage& message) {
  Slot<IncomingMessage>& slot = receives_[static_cast<size_t>(receives_begun_++ % kWindow)];
  slot.message = &message;
  const uint64_t number = num_received_[static_cast<size_t>(message.peer)]++;
  std::byte* const header =
      slot.staging != nullptr ? slot.staging : reinterpret_cast<std::byte*>(&message.header);
  std::byte* const payload = slot.staging != nullptr ? slot.staging + kSlotHeaderBytes : message.payload;
  prepare(slot, header, payload, message.peer, peers_.index, number);
  post(slot);
}

void FabricLink::post(Slot<OutgoingMessage>& slot) {
  const fi_addr_t to = peers_.addresses[static_cast<size_t>(slot.message->peer)];
  const auto send = [&](Transfer& transfer) {
    if (transfer.is_posted) return;
    transfer.is_posted = endpoint_->post_send(
        transfer.op, to, {transfer.data, static_cast<size_t>(transfer.num_bytes)}, transfer.tag);
  };
  send(slot.header);
  if (!slot.ready.is_posted) {
    slot.ready.is_posted = endpoint_->post_receive(slot.ready.op, {slot.ready.data, 0}, slot.ready.tag);
  }
  if (slot.ready.op.state == FabricOp::State::kDone) send(slot.payload);
}

void FabricLink::post(Slot<IncomingMessage>& slot) {
  for (Transfer* transfer : {&slot.payload, &slot.header}) {
    if (transfer->is_posted) continue;
    transfer->is_posted = endpoint_->post_receive(
        transfer->op, {transfer->data, static_cast<size_t>(transfer->num_bytes)}, transfer->tag);
  }
  if (slot.payload.is_posted && !slot.ready.is_posted) {
    const fi_addr_t to = peers_.addresses[static_cast<size_t>(slot.message->peer)];
    slot.ready.is_posted = endpoint_->send_empty(to, slot.ready.tag);
  }
}

void FabricLink::check_failed(const Transfer& transfer, int peer, bool while_sending) const {
  if (transfer.op.state != FabricOp::State::kFailed || transfer.op.error == FI_ETRUNC) return;
  throw LinkLoss{peer, while_sending,
                 fmt::format("fabric {} says {}", endpoint_->provider(), fabric_error(transfer.op.error))};
}

void FabricLink::settle(Slot<OutgoingMessage>& slot) {
  OutgoingMessage& message = *slot.message;
  check_failed(slot.ready, message.peer, true);
  for (Transfer* transfer : {&slot.header, &slot.payload}) {
    if (transfer->is_settled) continue;
    check_failed(*transfer, message.peer, true);
    if (transfer->op.state != FabricOp::State::kDone) continue;
    transfer->is_settled = true;
    (transfer == &slot.header ? message.header_done : message.payload_done) = transfer->num_bytes;
  }
}

void FabricLink::settle(Slot<IncomingMessage>& slot) {
  IncomingMessage& message = *slot.message;
  for (Transfer* transfer : {&slot.header, &slot.payload}) {
    if (transfer->is_settled) continue;
    check_failed(*transfer, message.peer, false);
    const bool is_over =
        transfer->op.state == FabricOp::State::kDone || transfer->op.state == FabricOp::State::kFailed;
    if (!is_over) continue;
    transfer->is_settled = true;
    const bool is_whole =
        transfer->op.state == FabricOp::State::kDone && transfer->op.num_bytes == transfer->num_bytes;
    if (transfer == &slot.header) {
      // One of another size is no header: left as it is, its checksum does not fit.
      if (is_whole && slot.staging != nullptr) {
        std::memcpy(&message.header, slot.staging, sizeof(WireHeader));
      } else if (!is_whole) {
        message.header = {};
      }
      message.header_done = transfer->num_bytes;
      continue;
    }
    if (slot.staging != nullptr) {
      std::memcpy(message.payload, transfer->data, static_cast<size_t>(transfer->num_bytes));
    }
    message.crc = crc32c(0, {message.payload, static_cast<size_t>(message.payload_bytes)});
    message.payload_done = transfer->num_bytes;
    // Its header says why, unless the sizes differ for no reason that it knows.
    if (!is_whole) slot.payload.op.state = FabricOp::State::kFailed;
  }
  if (message.done() && slot.payload.op.state == FabricOp::State::kFailed) {
    message.crc = ~message.header.payload_crc;
  }
}

bool FabricLink::progress() {
  const bool has_ended = endpoint_->progress() > 0;
  if (has_ended) {
    moved_at_ = Clock::now();
    idle_turns_ = 0;
  }
  for (Slot<OutgoingMessage>& slot : sends_) {
    if (slot.message == nullptr) continue;
    post(slot);
    settle(slot);
    if (slot.message->done()) slot.message = nullptr;
  }
  for (Slot<IncomingMessage>& slot : receives_) {
    if (slot.message == nullptr) continue;
    post(slot);
    settle(slot);
    if (slot.message->done()) slot.message = nullptr;
  }
  return has_ended;
}

bool FabricLink::advance(OutgoingMessage& message) {
  if (message.done()) return true;
  const bool moved = progress();
  return moved || message.done();
}

bool FabricLink::advance(IncomingMessage& message) {
  if (message.done()) return true;
  const bool moved = progress();
  return moved || message.done();
}

// ---- Waiting, and the end of peers

microseconds FabricLink::prepare_wait(const OutgoingMessage* sent, const IncomingMessage* received,
                                      std::vector<pollfd>& polled) {
  look_for_ended_peers();
  if (received != nullptr) check_peer(received->peer, false);
  if (sent != nullptr) check_peer(sent->peer, true);
  const bool has_ended = num_there_ < static_cast<int>(peers_.sockets.size()) - 1;
  polled.push_back({ends_.get(), POLLIN, 0});
  if (endpoint_->wait_fd() < 0) {
    return ++idle_turns_ < kTurnsBeforeSleep ? microseconds(0) : kSleep;
  }
  // A message that has not been posted yet has nothing that would wake this thread.
  const auto is_waiting = [](const auto& slot) {
    const bool is_payload_due = slot.ready.op.state == FabricOp::State::kDone;
    return slot.message != nullptr &&
           !(slot.header.is_posted && slot.ready.is_posted && (slot.payload.is_posted || !is_payload_due));
  };
  if (std::ranges::any_of(sends_, is_waiting) || std::ranges::any_of(receives_, is_waiting)) return kSleep;
  if (!endpoint_->may_wait()) return microseconds(0);
  polled.push_back({endpoint_->wait_fd(), POLLIN, 0});
  return has_ended ? kLongestFabricWait / 2 : kLongestFabricWait;
}

void FabricLink::look_for_ended_peers() {
  std::array<epoll_event, 16> events;
  const int count = ::epoll_wait(ends_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto member = static_cast<size_t>(events[static_cast<size_t>(i)].data.u64);
    ::epoll_ctl(ends_.get(), EPOLL_CTL_DEL, peers_.sockets[member].get(), nullptr);
    ended_at_[member] = Clock::now();
    --num_there_;
  }
}

void FabricLink::check_peer(int peer, bool while_sending) const {
  const Clock::time_point ended_at = ended_at_[static_cast<size_t>(peer)];
  if (ended_at == Clock::time_point()) return;
  if (Clock::now() - std::max(ended_at, moved_at_) < kGraceOfTheEnded) return;
  throw LinkLoss{peer, while_sending, "it closed the connection"};
}

void FabricLink::serve() { endpoint_->progress(); }

void FabricLink::leave() {
  for (const UniqueFd& socket : peers_.sockets) {
    if (socket) ::shutdown(socket.get(), SHUT_WR);
  }
}

bool FabricLink::may_close() {
  look_for_ended_peers();
  return num_there_ == 0;
}

}  // namespace tessera
