// The ranks of this node, from one start until the last of them has ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launch/job/agent_signals.h"
#include "launch/job/job_link.h"
#include "launch/job/launch_plan.h"
#include "launch/ranks/output_relay.h"
#include "launch/ranks/rank_files.h"
#include "launch/ranks/rank_process.h"
#include "launch/ranks/snapshot_memory.h"
#include "launch/reports/stall_reporter.h"

namespace tessera {

class RankGroup {
 public:
  // Starts the ranks. On Error, none of them is left running.
  RankGroup(const LaunchPlan& plan, const std::filesystem::path& log_folder, int restart_count,
            const SnapshotMemory& snapshots, AgentSignals* signals);
  // Kills the ranks that are left.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Returns once all ranks have ended.
  LaunchResult run();

 private:
  using Clock = std::chrono::steady_clock;

  enum class Phase {
    kRunning,
    kStopping,  // a signal asked the ranks to stop, or one of them stopped in an orderly way
    kFailing,   // one has failed: the others must end
    kKilled,    // the ranks were killed because their time was up
  };

  struct Rank {
    int rank;
    pid_t pid;  // 0: ended
    pid_t first_pid;
    RankFiles files;
  };

  void start(int local_rank, std::vector<RelaySource>* sources);
  int open_stream(int local_rank, bool is_err, const RankFiles& files, std::vector<RelaySource>* sources,
                  std::vector<int>* to_close) const;
  bool any_alive() const;
  void wait_for_events();
  void handle_signals();
  void handle_stop_signal(int number);
  void suspend();
  void collect_ended();
  void collect(const siginfo_t& info, Rank* rank);
  void note_end(const RankEnd& end);
  void signal_all(int number);
  void begin_to_fail();
  std::vector<RankSituation> situations() const;
  void enter(Phase phase, std::chrono::milliseconds time_to_end);
  LaunchResult result();
  void heed_other_nodes();
  void report_to_job(const RankEnd& end);
  void show_the_rest();
  void serve_other_nodes();

  const LaunchPlan& plan_;
  const std::filesystem::path& log_folder_;
  const int restart_count_;
  const SnapshotMemory& snapshots_;
  AgentSignals* const signals_;
  int64_t oom_kills_before_ = 0;

  std::optional<JobLink> job_;
  std::optional<StallReporter> stall_reporter_;
  std::vector<Rank> ranks_;
  std::optional<OutputRelay> relay_;
  std::vector<RankEnd> ends_;  // in order of time

  Phase phase_ = Phase::kRunning;
  std::optional<Clock::time_point> kill_time_;
  std::optional<Clock::time_point> look_time_;  // when to look at ranks that still hang
  int stop_signal_ = 0;
  Clock::time_point stop_time_;
  bool was_told_to_end_ = false;
  bool grace_was_over_ = false;
  bool interrupted_again_ = false;
  std::string report_place_;  // appended to an error
};

}  // namespace tessera
