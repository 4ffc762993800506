// Tells nodes that would take part in another start of the job, on behalf of node 0's agent, that there is
// none.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/store/store_wire.h"

namespace tessera {

struct FarewellOptions {
  std::vector<std::string> bind_addresses = {};  // empty: all
  int port = 0;                                  // 0: any free one
  std::string secret = {};
  std::string run_id = {};
  wire::Refusal message = {};  // sent to those who connect; kDone: the job has ended successfully
};

// Serves the meeting port from a thread of its own.
class MeetingFarewell {
 public:
  // Error(kBadConfig) if the port is taken.
  explicit MeetingFarewell(const FarewellOptions& options);
  // Waits at most half a second for those who connected to read it.
  ~MeetingFarewell();

  int port() const;
  // Waits until `num_nodes` nodes have received it; false if there were fewer by the timeout.
  bool wait_until_told(int num_nodes, std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
