// An agent on its way to the meeting of the nodes (meeting_server.h).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/store_client.h"
#include "comm/store_wire.h"

namespace tessera {

struct MeetingClientOptions {
  std::string address = {};  // of node 0
  int port = 0;
  std::string secret = {};
  wire::MeetRequest request = {};
  // Node 0 was there before: it is gone when it does not answer for the time of silence. Otherwise it may
  // come until the rendezvous timeout.
  bool has_met_before = false;
  StoreOptions timing = {};
};

class MeetingClient {
 public:
  explicit MeetingClient(const MeetingClientOptions& options);
  // Within some seconds, when a name is being resolved.
  ~MeetingClient();

  // What this node takes part in; nothing as long as it waits. Error(kTryAgain) when node 0 has ended or
  // cannot be reached, and what node 0 says when it refuses this node: with kDone that the job has ended
  // well.
  std::optional<wire::Assignment> wait(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
