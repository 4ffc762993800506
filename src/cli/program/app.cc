#include "cli/program/app.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/help_text.h"
#include "cli/hub_names.h"
#include "cli/program/build_info.h"
#include "cli/program/other_launchers.h"
#include "cli/run/rank.h"
#include "cli/terminal/terminal.h"
#include "comm/ranks/world.h"
#include "launch/job/launch_plan.h"
#include "settings/compat/compat_flags.h"

namespace tessera {
namespace {

bool is_help_flag(const std::string& argument) { return argument == "-h" || argument == "--help"; }

// For a two-word name, the first word is enough to ask for help if no other command shares it.
Command* command_asked_for(const Commands& all, const std::vector<std::string>& arguments,
                           size_t* num_words) {
  if (Command* const found = find_command(all, arguments, num_words)) return found;
  const std::vector<Command*> group = commands_of_group(all, arguments[0]);
  *num_words = 1;
  return arguments.size() == 2 && is_help_flag(arguments[1]) && group.size() == 1 ? group[0] : nullptr;
}

// Commands that were modes of another one: `was` with this flag.
struct OldSpelling {
  std::string_view was;
  std::string_view flag;
  std::string_view now;
  bool keeps_flag = true;
};
constexpr OldSpelling kOldSpellings[] = {
    {"plan", "simulate", "simulate", false}, {"plan", "instances", "plan search"},
    {"plan", "max_nodes", "plan search"},    {"plan", "sort", "plan search"},
    {"plan", "top", "plan search"},          {"plan", "max_hours", "plan search"},
    {"plan", "max_price", "plan search"},    {"plan", "spot", "plan search"},
    {"plan", "plot", "plan search"},
};

// Whether an argument is this flag, with or without its value.
bool is_flag(std::string argument, std::string_view flag) {
  if (!argument.starts_with("--")) return false;
  argument = argument.substr(2, argument.find('=') - 2);
  std::ranges::replace(argument, '-', '_');
  return argument == flag;
}

// The arguments as they are spelled today.
std::vector<std::string> todays_spelling(const std::vector<std::string>& arguments) {
  for (const OldSpelling& old : kOldSpellings) {
    const auto is_its_flag = [&](const std::string& argument) { return is_flag(argument, old.flag); };
    if (arguments.empty() || arguments[0] != old.was || std::ranges::none_of(arguments, is_its_flag))
      continue;
    std::vector<std::string> today = split(old.now, ' ');
    if (arguments.size() > 1 && arguments[1] == today.back()) return arguments;
    std::ranges::copy_if(
        arguments.begin() + 1, arguments.end(), std::back_inserter(today),
        [&](const std::string& argument) { return old.keeps_flag || !is_its_flag(argument); });
    return today;
  }
  return arguments;
}

[[noreturn]] void fail_unknown_command(const Commands& all, const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const Command* command : commands_of_group(all, arguments[0])) names.push_back(command->name());
  if (names.size() == 1) {
    fail(ExitCode::kUsage, "'{}' is not a command on its own; did you mean 'tessera {}'?", arguments[0],
         names[0]);
  }
  if (!names.empty()) {
    const bool has_second = arguments.size() > 1 && !arguments[1].starts_with('-');
    fail(ExitCode::kUsage, "'{}' is not a command; available: {}",
         printable(has_second ? arguments[0] + " " + arguments[1] : arguments[0]), fmt::join(names, ", "));
  }
  if (arguments[0].ends_with(".py") || arguments[0] == "python" || arguments[0] == "python3") {
    fail(ExitCode::kUsage, "unknown command '{}'; other programs follow --: tessera launch -- {}{} ...",
         printable(arguments[0]), arguments[0].ends_with(".py") ? "python3 " : "", printable(arguments[0]));
  }
  for (const auto& command : all) names.push_back(command->name());
  const std::string of_launcher = hint_for_launcher(arguments);
  if (!of_launcher.empty())
    fail(ExitCode::kUsage, "unknown command '{}'{}", printable(arguments[0]), of_launcher);
  const std::string hint =
      hint_for_name(arguments[0], names, names, compat_hints("command_hints")).text("'", "'");
  fail(ExitCode::kUsage, "unknown command '{}'{}", printable(arguments[0]),
       hint.empty() ? "; tessera --help lists them" : hint);
}

// Every rank would do all of the work and print the result. An agent for each node is what `launch` is for.
void refuse_several_ranks(const Command& command) {
  const std::optional<World> world = launched_world();
  if (!world || (command.is_for_nodes() && agents_of_launcher(process_environment()))) return;
  fail(ExitCode::kUsage, "'{}' runs as one process, but {} has started {}; run it without the launcher",
       command.name(), world->source, world->world_size);
}

// Messages that are the same on all ranks, such as warnings about flags, are logged once.
void quieten_other_ranks() {
  try {
    if (detect_world().rank > 0) set_log_level(LogLevel::kError);
  } catch (const Error&) {
    // The command will report it.
  }
}

void show_version(const std::vector<std::string>& arguments) {
  const bool as_json = arguments == std::vector<std::string>{"--json"};
  if (!as_json && !arguments.empty()) {
    fail(ExitCode::kUsage, "--version: expected --json or nothing after it, found '{}'",
         printable(arguments[0]));
  }
  write_output(as_json ? version_json(build_info()) : version_text(build_info()));
}

// Sets the command's flags, from the arguments after its name and from other sources.
ParseOutcome set_flags(Command& command, const std::vector<std::string>& arguments, size_t num_words,
                       FlagTable* table) {
  command.declare_flags(table);
  const std::vector<std::string> rest(arguments.begin() + static_cast<std::ptrdiff_t>(num_words),
                                      arguments.end());
  if (parse_flags(rest, table, command.rest_flag()) == ParseOutcome::kHelpWanted) {
    return ParseOutcome::kHelpWanted;
  }
  command.complete_flags(table);
  check_required_flags(*table);
  return ParseOutcome::kRun;
}

}  // namespace

bool check_command_line(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = todays_spelling(given);
  if (std::ranges::any_of(arguments, is_help_flag)) return false;
  const Commands all = commands();
  size_t num_words = 0;
  Command* const command = command_asked_for(all, arguments, &num_words);
  if (command == nullptr) fail_unknown_command(all, arguments);
  FlagTable table;
  set_log_level(LogLevel::kError);  // the process that runs the command warns
  set_flags(*command, arguments, num_words, &table);
  set_log_level(LogLevel::kInfo);
  return command->is_quiet();
}

void run_program(const std::vector<std::string>& given, const Commands& all) {
  const std::vector<std::string> arguments = todays_spelling(given);
  if (arguments.empty()) fail(ExitCode::kUsage, "no command given; tessera --help lists them");
  if (is_help_flag(arguments[0])) {
    write_output(program_help(all, terminal_width()));
  } else if (arguments[0] == "--version") {
    show_version({arguments.begin() + 1, arguments.end()});
  } else {
    size_t num_words = 0;
    Command* command = command_asked_for(all, arguments, &num_words);
    if (command == nullptr && arguments.size() == 2 && is_help_flag(arguments[1]) &&
        !commands_of_group(all, arguments[0]).empty()) {
      write_output(group_help(all, arguments[0], terminal_width()));
      flush_output();
      return;
    }
    if (command == nullptr) fail_unknown_command(all, arguments);
    if (command->is_for_ranks()) quieten_other_ranks();
    FlagTable table;
    if (set_flags(*command, arguments, num_words, &table) == ParseOutcome::kHelpWanted) {
      write_output(command_help(command, terminal_width()));
    } else {
      if (!command->is_for_ranks()) refuse_several_ranks(*command);
      if (command->is_quiet()) {
        raise_log_level(LogLevel::kWarning);
        hide_status_lines();
      }
      resolve_hub_names(*command, &table);
      try {
        command->run(&table);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kNoInput) throw;
        throw Error(error.code(), error.what() + bare_name_hint(table, error.what()));
      }
    }
  }
  flush_output();
}

}  // namespace tessera
