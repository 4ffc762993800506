// Where the agents of all nodes meet before each start of a job. Runs in the agent of node 0, on the port
// that the store of that start will use.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/store/store_client.h"
#include "comm/store/store_wire.h"
#include "launch/meeting/meeting.h"

namespace tessera {

struct MeetingOptions {
  std::vector<std::string> bind_addresses = {};  // empty: all
  int port = 0;                                  // 0: any free one
  std::string secret = {};
  std::string run_id = {};
  std::string host = {};  // of this node
  MeetingTerms terms = {};
  int local_world_size = 1;
  int restart_count = 0;  // of the start being prepared
  int num_failures = 0;   // of the program so far
  StoreOptions timing = {};
};

class MeetingServer {
 public:
  // Error(kBadConfig) if the port is taken.
  explicit MeetingServer(const MeetingOptions& options);
  // Tells attendees, if there is no result yet, that this node has ended.
  ~MeetingServer();

  int port() const;
  // Returns this node's assignment, as node 0; nullopt while the meeting is in progress. Error(kTryAgain) if
  // too few nodes have come in time; it names those present and the last refusal.
  std::optional<wire::Assignment> wait(std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
