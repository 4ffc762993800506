// What the agent of node 0 leaves to nodes that would take part in another start of the job: there is none.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/store_wire.h"

namespace tessera {

struct FarewellOptions {
  std::vector<std::string> bind_addresses = {};  // empty: all
  int port = 0;                                  // 0: any free one
  std::string secret = {};
  std::string run_id = {};
  wire::Refusal message = {};  // for those who come; kDone: the job has ended well
};

// Serves the port of the meetings from a thread of its own.
class MeetingFarewell {
 public:
  // Error(kBadConfig) when the port is taken.
  explicit MeetingFarewell(const FarewellOptions& options);
  // Waits for at most half a second until those who came have read it.
  ~MeetingFarewell();

  int port() const;
  // Until so many nodes have been told; false when they were fewer in that time.
  bool wait_until_told(int num_nodes, std::chrono::milliseconds timeout);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
