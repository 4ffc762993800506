// Messages of a lane over plain TCP: one connection to every other member.
#pragma once

#include <vector>

#include "base/unique_fd.h"
#include "comm/network/link/lane_link.h"

namespace tessera {

class TcpLink final : public LaneLink {
 public:
  // sockets[member]; that of this member itself is not open.
  explicit TcpLink(std::vector<UniqueFd> sockets) : sockets_(std::move(sockets)) {}

  // The kernel's buffers keep the connection busy between messages.
  int window() const override { return 1; }
  void begin(OutgoingMessage& /*message*/) override {}
  void begin(IncomingMessage& /*message*/) override {}
  bool advance(OutgoingMessage& message) override;
  bool advance(IncomingMessage& message) override;
  std::chrono::microseconds prepare_wait(const OutgoingMessage* sent, const IncomingMessage* received,
                                         std::vector<pollfd>& polled) override;

 private:
  int fd(int member) const { return sockets_[static_cast<size_t>(member)].get(); }

  std::vector<UniqueFd> sockets_;
};

}  // namespace tessera
