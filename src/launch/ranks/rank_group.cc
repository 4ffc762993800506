#include "launch/ranks/rank_group.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "comm/ranks/world.h"
#include "launch/job/rank_environment.h"
#include "platform/cgroup.h"

namespace tessera {
namespace {

// The time a rank may take to end after another has failed.
constexpr std::chrono::milliseconds kTimeAfterFailure{1000};
// After this time a rank that is still there counts as stuck.
constexpr std::chrono::milliseconds kTimeBeforeLook{400};
// The interval at which an agent checks whether another node has failed.
constexpr std::chrono::milliseconds kLookAround{100};
// Tools that end a program (timeout, srun) send SIGINT to it and again to its process group: one within this
// time of the first is not a second Ctrl-C.
constexpr std::chrono::milliseconds kSameInterrupt{100};
constexpr const char* kStreamNames[] = {"stdout.log", "stderr.log"};

}  // namespace

RankGroup::RankGroup(const LaunchPlan& plan, const std::filesystem::path& log_folder, int restart_count,
                     const SnapshotMemory& snapshots, AgentSignals* signals)
    : plan_(plan),
      log_folder_(log_folder),
      restart_count_(restart_count),
      snapshots_(snapshots),
      signals_(signals),
      oom_kills_before_(cgroup_oom_kills()) {
  std::vector<RelaySource> sources;
  job_.emplace(plan, restart_count);
  stall_reporter_.emplace(plan, log_folder, restart_count, *job_);
  try {
    for (int i = 0; i < plan.local_world_size; ++i) start(i, &sources);
  } catch (...) {
    signal_all(SIGKILL);
    throw;
  }
  relay_.emplace(sources);
}

RankGroup::~RankGroup() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) waitpid(rank.pid, nullptr, 0);
  }
}

// Returns the descriptor that becomes the rank's stream; -1: the agent's own.
int RankGroup::open_stream(int local_rank, bool is_err, const RankFiles& files,
                           std::vector<RelaySource>* sources, std::vector<int>* to_close) const {
  const RankOutput& output = plan_.outputs[static_cast<size_t>(local_rank)];
  const char* name = kStreamNames[is_err ? 1 : 0];
  const bool redirected = is_err ? output.redirected.err : output.redirected.out;
  const bool teed = is_err ? output.teed.err : output.teed.out;
  const int rank = plan_.first_rank() + local_rank;
  const int own = is_err ? STDERR_FILENO : STDOUT_FILENO;
  if (redirected) {
    to_close->push_back(files.open_log(name));
    return to_close->back();
  }
  // On a terminal rank 0 writes directly, as without an agent, with its progress line, colours and columns.
  if (rank == 0 && output.shown && !teed && isatty(own) == 1) return -1;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_errno(ExitCode::kIoError, errno, "a pipe for a rank's output");
  sources->push_back({.pipe = ends[0],
                      .prefix = rank == 0 ? "" : fmt::format("[rank {}] ", rank),
                      .shown_on = output.shown ? own : -1,
                      .file = teed ? files.open_log(name) : -1});
  to_close->push_back(ends[1]);
  return ends[1];
}

void RankGroup::start(int local_rank, std::vector<RelaySource>* sources) {
  RankFiles files(log_folder_, restart_count_, local_rank);
  std::vector<int> to_close;
  RankProcessOptions options;
  options.program = plan_.program;
  options.inherited = snapshots_.of_rank(local_rank);
  options.environment = merged_environment(environ, rank_variables(plan_,
                                                                   {.local_rank = local_rank,
                                                                    .restart_count = restart_count_,
                                                                    .master_port = job_->master_port(),
                                                                    .store_port = job_->store_port(),
                                                                    .error_file = files.error_file(),
                                                                    .position_file = files.position_file(),
                                                                    .snapshot_slots = options.inherited,
                                                                    .progress_file = files.progress_file()},
                                                                   process_environment()));
  options.cpus = plan_.processors[static_cast<size_t>(local_rank)].cpus;
  options.out = open_stream(local_rank, false, files, sources, &to_close);
  options.err = open_stream(local_rank, true, files, sources, &to_close);
  const pid_t pid = start_rank(options);
  for (const int fd : to_close) close(fd);
  ranks_.push_back(
      {.rank = plan_.first_rank() + local_rank, .pid = pid, .first_pid = pid, .files = std::move(files)});
}

bool RankGroup::any_alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.pid > 0; });
}

void RankGroup::signal_all(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) kill(-rank.pid, number);
  }
}

LaunchResult RankGroup::run() {
  while (any_alive()) {
    wait_for_events();
    relay_->move();
    handle_signals();
    heed_other_nodes();
    if (look_time_ && Clock::now() >= *look_time_) {
      look_time_.reset();
      stall_reporter_->look(situations());
    }
    if (kill_time_ && Clock::now() >= *kill_time_) {
      grace_was_over_ = phase_ == Phase::kStopping;
      kill_time_.reset();
      phase_ = Phase::kKilled;
      signal_all(SIGKILL);
    }
  }
  if (phase_ == Phase::kFailing || phase_ == Phase::kKilled) stall_reporter_->look(situations());
  show_the_rest();
  report_place_ = stall_reporter_->conclude();
  serve_other_nodes();
  return result();
}

void RankGroup::wait_for_events() {
  std::vector<pollfd> polls = {{signals_->fd(), POLLIN, 0}};
  relay_->append_polls(&polls);
  int timeout_ms = plan_.num_nodes > 1 ? static_cast<int>(kLookAround.count()) : -1;
  for (const std::optional<Clock::time_point>& time : {kill_time_, look_time_}) {
    if (!time) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*time - Clock::now());
    const int left_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
  }
  ::poll(polls.data(), polls.size(), timeout_ms);
}

void RankGroup::handle_signals() {
  for (const int number : signals_->take()) {
    if (number == SIGCHLD) {
      collect_ended();
    } else if (number == SIGTSTP) {
      suspend();
    } else {
      handle_stop_signal(number);
    }
  }
}

// Acts once; further signals change nothing, except for a second Ctrl-C.
void RankGroup::handle_stop_signal(int number) {
  was_told_to_end_ = true;
  if (phase_ == Phase::kRunning) {
    stop_signal_ = number;
    stop_time_ = Clock::now();
    enter(Phase::kStopping, plan_.termination_grace);
    signal_all(number);
  } else if (number == SIGINT) {
    if (stop_signal_ == SIGINT && Clock::now() - stop_time_ < kSameInterrupt) return;
    if (stop_signal_ == 0) stop_signal_ = number;
    interrupted_again_ = true;
    phase_ = Phase::kKilled;
    kill_time_.reset();
    signal_all(SIGKILL);
  }
}

// Ctrl-Z reaches only this process, so it is passed on.
void RankGroup::suspend() {
  signal_all(SIGSTOP);
  kill(getpid(), SIGSTOP);
  signal_all(SIGCONT);
}

void RankGroup::enter(Phase phase, std::chrono::milliseconds time_to_end) {
  phase_ = phase;
  kill_time_ = Clock::now() + time_to_end;
}

void RankGroup::collect_ended() {
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto ended =
        std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.pid == info.si_pid; });
    if (ended != ranks_.end()) {
      collect(info, &*ended);
    } else {
      // The init process of a container inherits the orphaned processes of ranks.
      waitpid(info.si_pid, nullptr, 0);
    }
  }
}

void RankGroup::collect(const siginfo_t& info, Rank* rank) {
  RankEnd end;
  end.rank = rank->rank;
  end.host = plan_.host;
  (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
  end.was_told_to_end = phase_ == Phase::kFailing || phase_ == Phase::kKilled;
  end.out_of_memory = end.signal == SIGKILL && cgroup_oom_kills() > oom_kills_before_;
  if (end.failed()) {
    end.report = read_error_report(rank->files.error_file());
    kill(-rank->pid, SIGKILL);  // its children; the pid is not reused before wait4
  }
  rusage usage = {};
  wait4(rank->pid, nullptr, 0, &usage);
  end.peak_memory_bytes = int64_t{usage.ru_maxrss} * 1024;
  rank->pid = 0;
  ends_.push_back(end);
  note_end(end);
}

void RankGroup::note_end(const RankEnd& end) {
  if (!end.failed() || phase_ != Phase::kRunning) return;
  if (end.report && end.report->stop_signal != 0 && end.ended_by(end.report->stop_signal)) {
    stop_signal_ = end.report->stop_signal;
    enter(Phase::kStopping, plan_.termination_grace);
    return;
  }
  report_to_job(end);
  begin_to_fail();
}

void RankGroup::begin_to_fail() {
  enter(Phase::kFailing, kTimeAfterFailure);
  look_time_ = Clock::now() + kTimeBeforeLook;
  signal_all(SIGTERM);
}

std::vector<RankSituation> RankGroup::situations() const {
  std::vector<RankSituation> situations;
  for (const Rank& rank : ranks_) {
    RankSituation situation = {
        .rank = rank.rank, .pid = rank.first_pid, .ended = {}, .position = rank.files.position()};
    for (const RankEnd& end : ends_) {
      if (end.rank != rank.rank) continue;
      situation.ended = end.how();
      situation.peak_memory_bytes = end.peak_memory_bytes;
    }
    situations.push_back(std::move(situation));
  }
  return situations;
}

// Tells the job, unless the rank blames a peer. Where a restart would not help, the others end with this
// code, too.
void RankGroup::report_to_job(const RankEnd& end) {
  if (end.caused_by_peer()) return;
  const int code = end.final_code();
  job_->report({.rank = end.rank,
                .host = end.host,
                .message = plan_.num_nodes > 1 ? end.describe_to_others() : end.describe(),
                .code = restart_may_help(code) ? ExitCode::kTryAgain : static_cast<ExitCode>(code)});
}

void RankGroup::heed_other_nodes() {
  if (plan_.num_nodes == 1 || phase_ != Phase::kRunning || !job_->failure()) return;
  begin_to_fail();
}

// Node 0 keeps its store running until the others no longer need it or another signal arrives. Ranks that a
// signal ended in order end on all nodes together: without the store the others would end with an error, so
// they get the same grace period. Other programs end at once.
void RankGroup::serve_other_nodes() {
  const bool was_stopped = stop_signal_ != 0;
  const bool in_order = std::ranges::all_of(
      ends_, [](const RankEnd& end) { return end.report && end.report->stop_signal != 0; });
  if (was_stopped && !in_order) return;
  const Clock::time_point deadline = Clock::now() + plan_.termination_grace;
  bool is_told = false;
  while (!is_told && job_->is_needed() && (!was_stopped || Clock::now() < deadline)) {
    pollfd wanted = {signals_->fd(), POLLIN, 0};
    ::poll(&wanted, 1, static_cast<int>(kLookAround.count()));
    for (const int number : signals_->take()) {
      if (number == SIGCHLD) continue;
      if (stop_signal_ == 0) stop_signal_ = number;
      is_told = was_told_to_end_ = true;
    }
  }
}

// Waits for a stopped reader as any program would; Ctrl-C or SIGTERM ends the wait.
void RankGroup::show_the_rest() {
  relay_->end_sources();
  relay_->move();
  while (relay_->has_pending()) {
    wait_for_events();
    relay_->move();
    for (const int number : signals_->take()) {
      if (number == SIGCHLD) continue;
      if (stop_signal_ == 0) stop_signal_ = number;
      was_told_to_end_ = true;
      return;
    }
  }
}

LaunchResult RankGroup::result() {
  LaunchResult result;
  result.was_told_to_end = was_told_to_end_;
  result.has_lost_store = job_->has_lost_store();
  result.has_progressed = ranks_.front().files.has_progress();
  result.num_waiting_nodes = job_->num_waiting_nodes();
  if (interrupted_again_) {
    result.signal = stop_signal_;
    return result;
  }
  std::vector<RankEnd> failures;
  for (const RankEnd& end : ends_) {
    const bool stopped = stop_signal_ != 0 && (end.ended_by(stop_signal_) || grace_was_over_);
    if (end.failed() && !stopped) failures.push_back(end);
  }
  const RankEnd* culprit = find_culprit(failures);
  const std::optional<Failure> verdict = job_->failure();
  const bool is_here = verdict && verdict->rank >= plan_.first_rank() &&
                       verdict->rank < plan_.first_rank() + plan_.local_world_size;
  // If the agent killed a rank of this node that was silent, the silence is the cause.
  if (culprit != nullptr && verdict && (!is_here || culprit->was_told_to_end)) {
    result.exit_code = static_cast<int>(verdict->code);
    result.error = verdict->message + report_place_;
    result.is_disruption = verdict->is_disruption;
    return result;
  }
  if (culprit != nullptr) {
    result.exit_code = culprit->final_code();
    result.rank_signal = culprit->signal;
    result.error = culprit->describe() + report_place_;
    result.is_disruption = culprit->caused_by_peer();
    return result;
  }
  const bool any_stopped =
      std::any_of(ends_.begin(), ends_.end(), [](const RankEnd& end) { return end.failed(); });
  if (any_stopped) {
    if (grace_was_over_) {
      log_warning("ranks that had not ended {} s after the signal were killed",
                  static_cast<double>(plan_.termination_grace.count()) / 1000);
    }
    result.signal = stop_signal_;
  }
  return result;
}

}  // namespace tessera
