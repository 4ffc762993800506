// One rank as a child process of the agent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/reports/rank_report.h"

namespace tessera {

struct RankProcessOptions {
  std::vector<std::string> program;      // path, name, arguments...
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cpus;                 // affinity mask; empty: the agent's
  int out = -1;                          // becomes standard output; -1: the agent's
  int err = -1;
  std::vector<int> inherited = {};  // further descriptors that stay open, with the same numbers
};

// Starts the rank in a process group of its own, so that Ctrl-C reaches only the agent, with empty standard
// input. It is killed when the agent ends for any reason. Error if the program cannot be executed.
pid_t start_rank(const RankProcessOptions& options);

// The end of a rank.
struct RankEnd {
  int rank = 0;
  std::string host;
  int exit_code = 0;  // if no signal ended it
  int signal = 0;
  bool was_told_to_end = false;   // by the agent, because of another rank's failure
  int64_t peak_memory_bytes = 0;  // resident set
  bool out_of_memory = false;     // killed while the kernel's out-of-memory killer was active
  std::optional<ErrorReport> report;

  bool failed() const { return exit_code != 0 || signal != 0; }
  // Ended by this signal, directly or with the exit code that stands for it.
  bool ended_by(int signal_number) const {
    return signal == signal_number || (signal == 0 && exit_code == 128 + signal_number);
  }
  bool caused_by_peer() const { return report && report->caused_by_peer; }
  bool tells_users_mistake() const {
    return report && signal == 0 && is_users_mistake(static_cast<ExitCode>(exit_code));
  }
  // The agent's exit code for it: the rank's own; 75 after a signal.
  int final_code() const;
  // "exit code 75", "signal 9 (SIGKILL)".
  std::string how() const;
  // "rank 2 on host b: no space left on device", "rank 2 on host b was killed by signal 9 (SIGKILL)". A
  // user's mistake is returned unchanged: no rank is to blame.
  std::string describe() const;
  // For other nodes: a user's mistake gets the prefix "host b: "; otherwise the same.
  std::string describe_to_others() const;
};

// The end that caused the others: the first of a rank that was not asked to end and blames no other, or the
// lowest rank with the same message; nullptr if none failed. `ends` are in chronological order.
const RankEnd* find_culprit(const std::vector<RankEnd>& ends);

// Whether a restart may help: not after bad input, bad settings, bugs or numerical failures.
bool restart_may_help(int exit_code);

}  // namespace tessera
