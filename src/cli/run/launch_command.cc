#include "base/error.h"
#include "base/log.h"
#include "cli/app.h"
#include "cli/command.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/terminal.h"
#include "comm/ranks/world.h"
#include "launch/agent.h"
#include "launch/launch_arguments.h"
#include "launch/launch_plan.h"
#include "launch/reports/termination_log.h"

namespace tessera {
namespace {

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }
  std::string summary() const override { return "Start several ranks of a command on this node"; }
  std::string usage() const override { return "[flags] COMMAND... | -- PROGRAM..."; }
  std::string description() const override {
    return "Starts the ranks of this node, divides its processors among them, shows their output (rank 0's "
           "unchanged, the others' lines prefixed with their number) and forwards SIGINT, SIGTERM and "
           "SIGHUP. When a rank fails, the others are stopped within a second, and its error and exit code "
           "become those of the launch. The flags, the variables that ranks get, and the variables that set "
           "flag defaults (PET_NNODES, PET_NPROC_PER_NODE and so on) are those of torchrun. With several "
           "nodes, run it once on each.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera launch --nproc_per_node 4 train --model start --dataset text ...",
            "tessera launch --nnodes 2 --node_rank 0 --rdzv_endpoint host0:29500 \\",
            "    --nproc_per_node auto train run.yaml"};
  }

  void declare_flags(FlagTable* table) override { declare_launch_flags(table, &arguments_); }

  std::string rest_flag() const override { return "command"; }
  bool is_for_nodes() const override { return true; }

  void complete_flags(FlagTable* table) override {
    apply_pet_variables(process_environment(), table, &arguments_);
  }

  void run(FlagTable* table) override {
    LaunchPlan plan = plan_launch(arguments_, *table, process_environment(), node_processors());
    // The ranks would find it only after the nodes have met.
    if (plan.is_tessera && check_command_line(arguments_.command)) raise_log_level(LogLevel::kWarning);
    if (plan.marks_progress()) plan.resume_command = resume_command(own_command_line());
    for (const std::string& note : plan.notes) log_info("{}", note);
    for (const std::string& warning : plan.warnings) log_warning("{}", warning);
    const LaunchResult result = run_agent(plan);
    if (result.signal != 0) {
      // A rank that stopped in order has said how far the run got.
      leave_termination_message(fmt::format("ended by signal {}", result.signal), EarlierMessage::kKept);
      clear_line_of_child();
      end_by_signal(result.signal);
    }
    if (result.exit_code != 0) throw Error(static_cast<ExitCode>(result.exit_code), result.error);
  }

 private:
  LaunchArguments arguments_;
};

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<LaunchCommand>(); }

}  // namespace tessera
