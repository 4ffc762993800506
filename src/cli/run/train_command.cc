#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "cli/command.h"
#include "cli/run/rank.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/train_report.h"
#include "cli/threads.h"
#include "comm/communicator.h"
#include "launch/reports/rank_report.h"
#include "launch/reports/termination_log.h"
#include "monitor/run_server.h"
#include "platform/stop_signal.h"
#include "platform/thread_pool.h"
#include "report/sinks/control_channel.h"
#include "report/sinks/trainjob_status.h"
#include "settings/run_settings.h"
#include "train/trainer.h"

namespace tessera {
namespace {

// The report of rank 0, which also tells its agent when the first step is done.
class RankReport : public TerminalReport {
 public:
  using TerminalReport::TerminalReport;
  void on_step(const StepMetrics& metrics) override {
    if (!std::exchange(has_told_, true)) leave_progress_mark();
    TerminalReport::on_step(metrics);
  }

 private:
  bool has_told_ = false;
};

std::string signal_name(int number) { return fmt::format("SIG{}", sigabbrev_np(number)); }

// "finished: step 600 of 600, mean loss 1.2345, in /data/runs/job".
std::string describe_end(const TrainSummary& summary, int64_t max_steps) {
  const std::string how =
      summary.stop_signal == 0 ? "finished" : "stopped by " + signal_name(summary.stop_signal);
  std::string text = fmt::format("{}: step {} of {}, mean loss {:.4f}", how, summary.num_steps, max_steps,
                                 summary.train_loss);
  if (!summary.folder.empty()) text += ", in " + summary.folder.string();
  return text;
}

class TrainCommand : public Command {
 public:
  std::string name() const override { return "train"; }

  bool is_for_ranks() const override { return true; }
  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &given_);
    table->add_alias("fit_memory", "memory");
    table->add_alias("fit_disk", "disk");
  }

  void complete_flags(FlagTable* table) override {
    read_setting_files(table, &given_);
    read_environment(process_environment(), table, &given_);
  }
  bool is_quiet() const override { return given_.reporting.quiet; }

  DataArguments* data_arguments() override { return &given_.data; }
  void on_hub_names(const std::string& flag, const std::vector<std::string>& names) override {
    given_.model.hub_names[flag] = names.at(0);
  }

  void run(FlagTable* table) override {
    check_ranks_are_started();
    const World world = detect_world();
    given_.launch.num_restarts = world.num_restarts();
    // Messages that are the same on every rank are logged once.
    set_log_level(world.rank == 0 ? given_.reporting.lowest_log_level() : LogLevel::kError);
    const RunSpec spec = read_run_spec(*table, given_, world.world_size);
    set_closed_output(ClosedOutput::kIsIgnored);
    if (world.job_restarts > 0 && spec.launch.id.empty())  // otherwise the agent has said so
      log_info("restart attempt {} of the job", world.job_restarts);
    int stop_signal = 0;
    run_as_rank(world, comm_options(spec.network),
                [&](Communicator& comm) { stop_signal = train(spec, comm); });
    // Everything is saved.
    if (stop_signal != 0) {
      // An agent gives the other ranks time to end in the same way.
      leave_error_report({.message = fmt::format("stopped by signal {}", stop_signal),
                          .code = 128 + stop_signal,
                          .stop_signal = stop_signal});
      end_by_signal(stop_signal);
    }
  }

 private:
  // Returns the signal that ended the run early; 0 = none.
  static int train(const RunSpec& spec, Communicator& comm) {
    comm.check_same_settings(settings_of_the_job(spec));
    RankReport report({!spec.reporting.disable_tqdm, spec.reporting.quiet, describe_resuming(comm.world())});
    const std::unique_ptr<RunServer> server = RunServer::open(spec, comm, TESSERA_VERSION);
    ObserverList reports;
    reports.add(report);
    if (server) reports.add(*server);
    const bool is_root = comm.world().rank == 0;
    std::optional<TrainJobStatus> trainjob;
    if (is_root) {
      if (const auto trainer_server = trainjob_server(process_environment())) {
        trainjob.emplace(*trainer_server);
        reports.add(*trainjob);
      }
    }
    const auto control = is_root ? ControlChannel::open(spec, process_environment()) : nullptr;
    if (control) reports.add(*control);
    TrainObserver& observer = is_root || !server ? static_cast<TrainObserver&>(reports) : *server;
    ThreadPool pool(threads_for_products(spec.machine.num_threads));
    Trainer trainer(spec, pool, observer, comm);
    const StopSignals signals(clear_status_line);
    bool has_told = false;
    const auto received = [&] {
      const int signal = signals.received();
      if (signal != 0 && !std::exchange(has_told, true)) tell_of_signal(signal, spec.saving);
      return signal;
    };
    const TrainSummary summary = trainer.run(received, control.get());
    comm.leave();
    // One rank of each pod; an error is reported by the agent, or in main().
    if (comm.world().local_rank == 0)
      leave_termination_message(describe_end(summary, trainer.plan().max_steps));
    if (spec.reporting.quiet && comm.world().rank == 0 && !summary.folder.empty())
      print("{}\n", summary.folder.string());
    return summary.stop_signal;
  }

  // A step may take minutes: without this message a user may press Ctrl-C again, which costs the checkpoint.
  static void tell_of_signal(int signal, const SavingSpec& saving) {
    log_info("{}: the run ends {}", signal_name(signal),
             saving.on_sigterm
                 ? "with a checkpoint of the last finished step; a second Ctrl-C ends it at once, without one"
                 : "without a checkpoint, because save_on_sigterm is false");
  }

  static CommOptions comm_options(const NetworkSpec& network) {
    CommOptions options;
    constexpr int64_t kLongest = 1'000'000;  // 11 days; waits are counted in milliseconds
    options.timeout = std::chrono::seconds(std::min(network.timeout_s, kLongest));
    options.connections = static_cast<int>(network.connections);
    options.fabric = network.fabric;
    options.store.interface = network.interface;
    return options;
  }

  // Settings by their names in training_args.json; paths and per-machine settings may differ between ranks.
  static std::map<std::string, std::string> settings_of_the_job(const RunSpec& spec) {
    static const std::set<std::string> kOfTheRank = {
        "num_threads", "interface",    "cache_dir", "dataset_spool", "output_dir",
        "log_level",   "measure_peak", "quiet",     "metrics_host",  "metrics_port"};
    std::map<std::string, std::string> settings = {{"version of tessera", TESSERA_VERSION}};
    const nlohmann::json arguments = training_arguments(spec);
    for (const auto& [name, value] : arguments.items()) {
      if (!kOfTheRank.contains(name)) settings.emplace(name, value.dump());
    }
    return settings;
  }

  RunSettings given_;  // by flags and files
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace tessera
