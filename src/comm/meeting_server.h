// Where the agents of all nodes meet before each start of a job: in the agent of node 0, on the port that the
// store of the start will have.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/meeting.h"
#include "comm/store_client.h"
#include "comm/store_wire.h"

namespace tessera {

struct MeetingOptions {
  std::vector<std::string> bind_addresses = {};  // empty: all
  int port = 0;                                  // 0: any free one
  std::string secret = {};
  std::string run_id = {};
  std::string host = {};  // of this node
  MeetingTerms terms = {};
  int local_world_size = 1;
  int restart_count = 0;  // of the start that is prepared
  int num_failures = 0;   // of the program until now
  StoreOptions timing = {};
};

class MeetingServer {
 public:
  // Error(kBadConfig) when the port is taken.
  explicit MeetingServer(const MeetingOptions& options);
  // Attendees of a meeting without a result are told that this node has ended.
  ~MeetingServer();

  int port() const;
  // What this node takes part in, as node 0; nothing as long as the meeting goes on. Error(kTryAgain) when
  // too few nodes have come in time: who is there, and who was refused.
  std::optional<wire::Assignment> wait(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
