// Ranks for tests: on one node as threads of this process or as processes that a test may kill, on several
// nodes as threads.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/node/node_group.h"

namespace tessera {

// A rank of a single-node job on host "testhost".
World world_of(int rank, int size, const std::string& run_id);

// Unique among all tests, including test programs that run at the same time.
std::string fresh_run_id();

using RankBody = std::function<void(NodeGroup& group, FailureDetector& failures)>;

// Runs the body on `size` threads, each a rank with a failure detector of its own. Returns what each threw.
std::vector<std::string> run_threads(int size, const RankBody& body,
                                     std::chrono::milliseconds timeout = std::chrono::seconds(20));

// Runs the body on num_nodes * local_world_size threads, each a rank with a communicator of its own; the
// nodes differ only in their number. Returns what each threw.
std::vector<std::string> run_communicators(int num_nodes, int local_world_size, const CommOptions& options,
                                           const std::function<void(Communicator& comm)>& body);

// The reason, for GTEST_SKIP, if this process may not open as many files as run_communicators() needs for
// these ranks; "" if it may.
std::string lacks_open_files(int num_nodes, int local_world_size);

// One process per rank, forked from this one, which must have no other threads.
class RankProcesses {
 public:
  RankProcesses(int size, const RankBody& body, std::chrono::milliseconds timeout = std::chrono::seconds(20));
  // Starts only the ranks for which `starts(rank)` is true.
  RankProcesses(int size, const std::function<bool(int rank)>& starts, const RankBody& body,
                std::chrono::milliseconds timeout);
  // Kills the processes that are left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void kill(int rank);
  // Waits until the process has ended. Returns "" if its body returned, "signal 9", or what it threw.
  std::string wait(int rank);

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;
  };
  std::vector<Process> processes_;
};

}  // namespace tessera
