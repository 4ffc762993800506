#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/program/app.h"
#include "cli/run/resume_command.h"
#include "cli/terminal/terminal.h"
#include "comm/ranks/world.h"
#include "launch/agent.h"
#include "launch/job/launch_arguments.h"
#include "launch/job/launch_plan.h"
#include "launch/reports/termination_log.h"
#include "settings/compat/compat_flags.h"

namespace tessera {
namespace {

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }

  void declare_flags(FlagTable* table) override {
    declare_launch_flags(table, &arguments_);
    table->add_foreign_names(compat_hints("launch_hints"));
  }

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
