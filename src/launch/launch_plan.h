// What an agent is going to do, worked out from flags, variables and the machine before anything starts.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "comm/world.h"
#include "launch/cpu_assignment.h"
#include "launch/launch_arguments.h"
#include "launch/stream_choice.h"

namespace tessera {

// How one rank's output is treated.
struct RankOutput {
  StreamChoice redirected;  // to a file only
  StreamChoice teed;        // to a file and shown
  bool shown = true;
  bool has_file() const { return redirected.out || redirected.err || teed.out || teed.err; }
};

struct LaunchPlan {
  // --nnodes. With more than one the nodes meet before every start, and each start has its own number of
  // nodes and ranks of nodes; before the first they are max_nodes and --node_rank.
  int min_nodes = 1;
  int max_nodes = 1;
  int wanted_rank = 0;
  int num_nodes = 1;
  int node_rank = 0;
  int local_world_size = 1;
  std::string host;  // this one

  std::string master_addr;
  int master_port = 0;                      // 0: any free one (single node)
  std::vector<std::string> bind_addresses;  // that node 0 listens on; empty: all. run_agent() looks them up
  std::string run_id;
  std::string launch_id;  // run_agent() makes one up
  std::string secret;     // "": none
  std::string role;
  std::chrono::milliseconds rendezvous_timeout{900'000};
  std::optional<std::chrono::milliseconds> last_call;  // for more nodes than the fewest; unset: the defaults
  std::chrono::milliseconds heartbeat_timeout{5'000};  // a silence that is a failure

  int max_restarts = 0;
  int max_idle_restarts = 3;
  std::chrono::milliseconds termination_grace{30'000};

  std::string log_dir;
  std::vector<RankOutput> outputs;         // by local rank
  std::vector<RankProcessors> processors;  // by local rank
  std::vector<std::string> program;        // path, name (argv[0]), arguments...
  bool is_tessera = false;                 // this very program
  std::string resume_command;              // of the whole launch, for the ranks to show; "": none

  std::vector<std::string> notes;     // for the user: what was understood in an unusual way
  std::vector<std::string> warnings;  // what will be slow

  int world_size() const { return num_nodes * local_world_size; }
  int first_rank() const { return node_rank * local_world_size; }
  bool has_meetings() const { return max_nodes > 1; }
  bool is_elastic() const { return min_nodes < max_nodes; }
  // The ranks say when they have finished a step.
  bool marks_progress() const { return is_tessera && program.size() > 2 && program[2] == "train"; }
  bool serves_store() const { return node_rank == 0 && (world_size() > 1 || has_meetings()); }
};

// 16 hexadecimal digits.
std::string random_id();

// `table` tells which flags were given; `environment` finds programs (PATH). Error(kUsage) for flags and
// Error(kBadConfig) for variables that make no sense.
LaunchPlan plan_launch(const LaunchArguments& arguments, const FlagTable& table,
                       const Environment& environment, const NodeProcessors& node);

}  // namespace tessera
