// One rank as a child process of the agent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mistakes.h"
#include "launch/rank_report.h"

namespace tessera {

struct RankProcessOptions {
  std::vector<std::string> program;      // path, name, arguments...
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<int> cpus;                 // affinity mask; empty: the agent's
  int out = -1;                          // becomes standard output; -1: the agent's
  int err = -1;
  std::vector<int> inherited = {};  // further descriptors that stay open, under their numbers
};

// Starts it in a process group of its own, so that a Ctrl-C reaches the agent only; with nothing on standard
// input; killed when the agent ends in whatever way. Error when the program cannot be executed.
pid_t start_rank(const RankProcessOptions& options);

// "signal 9 (SIGKILL)".
std::string signal_text(int number);

// How a rank ended.
struct RankEnd {
  int rank = 0;
  std::string host;
  int exit_code = 0;  // when no signal ended it
  int signal = 0;
  bool was_told_to_end = false;   // by the agent, because of another rank's failure
  int64_t peak_memory_bytes = 0;  // resident
  bool out_of_memory = false;     // killed while the kernel's out-of-memory killer was at work
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
  // Of the agent: this rank's; 75 after a signal.
  int final_code() const;
  // "exit code 75", "signal 9 (SIGKILL)".
  std::string how() const;
  // "rank 2 on host b: no space left on device", "rank 2 on host b was killed by signal 9 (SIGKILL)". The
  // user's mistake as it is: no rank is to blame.
  std::string describe() const;
  // For other nodes: "host b: " before the user's mistake, else the same.
  std::string describe_to_others() const;
};

// The end that the others follow from: of those that were not told to end and name no other culprit the first
// one, or the lowest rank that says the same; nullptr when none failed. `ends` are in order of time.
const RankEnd* find_culprit(const std::vector<RankEnd>& ends);

// Whether starting again may help: not after wrong input, wrong settings, bugs and failed numerics.
bool restart_may_help(int exit_code);

}  // namespace tessera
