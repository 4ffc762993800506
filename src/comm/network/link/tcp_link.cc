#include "comm/network/link/tcp_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/crc32c.h"

namespace tessera {
namespace {

// Receiving in pieces of at most this size lets the checksum read from L1 and L2.
constexpr int64_t kReceiveBytes = 1 << 16;
constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(WireHeader));
// Within this time a failure elsewhere ends a wait.
constexpr std::chrono::milliseconds kLongestWait{20};

}  // namespace

bool TcpLink::advance(OutgoingMessage& message) {
  bool moved = false;
  while (!message.done()) {
    iovec pieces[2] = {{reinterpret_cast<std::byte*>(&message.header) + message.header_done,
                        static_cast<size_t>(kHeaderBytes - message.header_done)},
                       {const_cast<std::byte*>(message.payload) + message.payload_done,
                        static_cast<size_t>(message.payload_bytes - message.payload_done)}};
    msghdr parts{};
    parts.msg_iov = pieces;
    parts.msg_iovlen = 2;
    const ssize_t sent = ::sendmsg(fd(message.peer), &parts, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return moved;
      throw LinkLoss{message.peer, true, std::strerror(errno)};
    }
    moved = true;
    const int64_t of_header = std::min<int64_t>(sent, kHeaderBytes - message.header_done);
    message.header_done += of_header;
    message.payload_done += sent - of_header;
  }
  return moved;
}

bool TcpLink::advance(IncomingMessage& message) {
  bool moved = false;
  while (!message.done()) {
    const bool in_header = !message.has_header();
    std::byte* const to = in_header ? reinterpret_cast<std::byte*>(&message.header) + message.header_done
                                    : message.payload + message.payload_done;
    const int64_t want = in_header ? kHeaderBytes - message.header_done
                                   : std::min(kReceiveBytes, message.payload_bytes - message.payload_done);
    const ssize_t got = ::recv(fd(message.peer), to, static_cast<size_t>(want), MSG_DONTWAIT);
    if (got == 0) throw LinkLoss{message.peer, false, "it closed the connection"};
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return moved;
      throw LinkLoss{message.peer, false, std::strerror(errno)};
    }
    moved = true;
    if (in_header) {
      message.header_done += got;
      if (message.has_header()) return true;
    } else {
      message.crc = crc32c(message.crc, {to, static_cast<size_t>(got)});
      message.payload_done += got;
    }
  }
  return moved;
}

std::chrono::microseconds TcpLink::prepare_wait(const OutgoingMessage* sent, const IncomingMessage* received,
                                                std::vector<pollfd>& polled) {
  if (received != nullptr) polled.push_back({fd(received->peer), POLLIN, 0});
  if (sent != nullptr) polled.push_back({fd(sent->peer), POLLOUT, 0});
  return kLongestWait;
}

}  // namespace tessera
