// An agent's side of the meeting of the nodes (meeting_server.h).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/store/store_client.h"
#include "comm/store/store_wire.h"

namespace tessera {

struct MeetingClientOptions {
  std::string address = {};  // of node 0
  int port = 0;
  std::string secret = {}, run_id = {};
  wire::MeetRequest request = {};
  // Node 0 has been reached before, so it counts as gone when it does not answer for timing.silence.
  // Otherwise it has until the rendezvous timeout to appear.
  bool has_met_before = false;
  StoreOptions timing = {};
};

class MeetingClient {
 public:
  explicit MeetingClient(const MeetingClientOptions& options);
  // May take a few seconds while a name is being resolved.
  ~MeetingClient();

  // Returns this node's assignment; nullopt while it is still waiting. Error(kTryAgain) if node 0 has ended
  // or cannot be reached. If node 0 refuses this node, an Error with node 0's reason; code kDone means the
  // job has ended successfully.
  std::optional<wire::Assignment> wait(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
