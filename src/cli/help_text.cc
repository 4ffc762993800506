#include "cli/help_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

constexpr int64_t kFlagIndent = 2;
constexpr int64_t kHelpColumn = 26;  // where the description of a flag begins

// A long list of choices is moved from the name of the value to the description.
bool has_many_choices(const Flag& flag) {
  constexpr size_t kMaxValueName = 28;  // "bfloat16|float16|float32" still fits
  return flag.value_name.size() > kMaxValueName && flag.value_name.find('|') != std::string::npos;
}

std::string flag_entry(const Flag& flag, int64_t width) {
  const std::string left = std::string(kFlagIndent, ' ') + flag_left_side(flag);
  const std::string remarks = flag_remarks(flag);
  const std::string text = flag.help + choices_sentence(flag) + (remarks.empty() ? "" : " " + remarks);
  std::string body = wrap_text(text, kHelpColumn, width);
  if (static_cast<int64_t>(left.size()) + 2 <= kHelpColumn && !body.empty()) {
    return left + body.substr(left.size());
  }
  return left + "\n" + body;
}

// "--a, --b, ..." of the flags that are known but not honoured.
std::string unsupported_list(const FlagTable& table, FlagStatus status, const char* heading, int64_t width) {
  std::vector<std::string> names;
  for (const Flag* flag : with_status(table, status)) names.push_back("--" + flag->name);
  if (names.empty()) return "";
  return fmt::format("\n{}{}", wrap_text(heading, 0, width),
                     wrap_text(fmt::format("{}", fmt::join(names, ", ")), kFlagIndent, width));
}

std::string usage_line(const Command& command, int64_t width) {
  return wrap_text(fmt::format("Usage: tessera {} {}", command.name(), command.usage()), 0, width);
}

// A cell of a Markdown table.
std::string cell(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '|' || text[i] == '<') text.insert(i++, "\\");
    if (text[i] == '\n') text[i] = ' ';
  }
  return text;
}

std::string code(const std::string& text) { return text.empty() ? "" : fmt::format("`{}`", cell(text)); }

std::string markdown_unsupported(const FlagTable& table, FlagStatus status, const char* heading) {
  const std::vector<const Flag*> flags = with_status(table, status);
  if (flags.empty()) return "";
  std::string out = fmt::format("### {}\n\n| flag | default | why |\n|---|---|---|\n", heading);
  for (const Flag* flag : flags) {
    out += fmt::format("| `--{}` | {} | {} |\n", flag->name, code(flag->default_text), cell(flag->note));
  }
  return out + "\n";
}

std::string markdown_command(Command* command) {
  FlagTable table;
  command->declare_flags(&table);
  std::string out = fmt::format("## tessera {}\n\n{}.\n\n", command->name(), command->summary());
  if (!command->description().empty()) out += command->description() + "\n\n";
  out += fmt::format("    tessera {} {}\n\n", command->name(), command->usage());
  std::string section;
  for (const Flag& flag : table.flags()) {
    if (!flag.listed || flag.status != FlagStatus::kHonoured) continue;
    if (flag.section != section) {
      if (!section.empty()) out += "\n";
      section = flag.section;
      out += fmt::format("### {}\n\n| flag | value | default | meaning |\n|---|---|---|---|\n", section);
    }
    std::string meaning = flag.help + choices_sentence(flag);
    if (flag.required) meaning += " Required.";
    if (!flag.aliases.empty()) meaning += fmt::format(" Also `--{}`.", fmt::join(flag.aliases, "`, `--"));
    out += fmt::format("| {} | {} | {} | {} |\n", flag.positional ? "" : "`--" + flag.name + "`",
                       has_many_choices(flag) ? "`NAME`" : code(flag.value_name), code(flag.default_text),
                       cell(meaning));
  }
  if (!section.empty()) out += "\n";
  out += markdown_unsupported(table, FlagStatus::kIgnored, "Accepted without effect");
  out += markdown_unsupported(table, FlagStatus::kRefused, "Refused unless given their default");
  return out;
}

// Names and summaries in two columns.
std::string command_list(const std::vector<Command*>& listed, int64_t width) {
  size_t name_width = 0;
  for (const Command* command : listed) name_width = std::max(name_width, command->name().size());
  std::string out;
  for (const Command* command : listed) {
    const auto column = static_cast<int64_t>(name_width) + 4;
    const std::string left = fmt::format("  {:<{}}  ", command->name(), name_width);
    out += left + wrap_text(command->summary(), column, width).substr(left.size());
  }
  return out;
}

}  // namespace

std::string flag_left_side(const Flag& flag) {
  if (has_many_choices(flag)) return fmt::format("--{} NAME", flag.name);
  if (flag.positional) return flag.value_name;
  if (flag.type == FlagType::kBool) return fmt::format("--{} [BOOL]", flag.name);
  return fmt::format("--{} {}", flag.name, flag.value_name);
}

std::string choices_sentence(const Flag& flag) {
  if (!has_many_choices(flag)) return "";
  std::string choices;
  for (const char c : flag.value_name) choices += c == '|' ? std::string(", ") : std::string(1, c);
  return fmt::format(" One of {}.", choices);
}

std::string flag_remarks(const Flag& flag) {
  std::vector<std::string> remarks;
  if (flag.required) remarks.push_back("required");
  if (!flag.default_text.empty()) remarks.push_back("default " + flag.default_text);
  if (!flag.aliases.empty()) remarks.push_back(fmt::format("also --{}", fmt::join(flag.aliases, ", --")));
  return remarks.empty() ? "" : fmt::format("({})", fmt::join(remarks, "; "));
}

std::vector<const Flag*> with_status(const FlagTable& table, FlagStatus status) {
  std::vector<const Flag*> out;
  for (const Flag& flag : table.flags()) {
    if (flag.listed && flag.status == status) out.push_back(&flag);
  }
  return out;
}

std::vector<Command*> commands_of_group(const Commands& all, const std::string& group) {
  std::vector<Command*> members;
  for (const auto& command : all) {
    if (command->name().starts_with(group + " ")) members.push_back(command.get());
  }
  return members;
}

std::string group_help(const Commands& all, const std::string& group, int64_t width) {
  return wrap_text(fmt::format("Usage: tessera {} COMMAND [flags]", group), 0, width) + "\nCommands:\n" +
         command_list(commands_of_group(all, group), width) + "\n" +
         wrap_text(fmt::format("tessera help {} COMMAND explains one.", group), 0, width);
}

std::string program_help(const Commands& all, int64_t width) {
  std::string out = wrap_text(
      "Tessera trains Llama-family language models on the processors of ordinary servers.", 0, width);
  out += "\nUsage: tessera COMMAND [flags]\n\nCommands:\n";
  std::vector<Command*> listed;
  for (const auto& command : all) listed.push_back(command.get());
  out += command_list(listed, width);
  out +=
      "\nFlags:\n  -h, --help  this text; `tessera COMMAND --help` explains a command\n  --version   the "
      "version and how the program was built; also with --json\n\n";
  std::string codes;
  for (const auto& [code, meaning] : exit_code_meanings()) {
    codes += fmt::format("{}{} {}", codes.empty() ? "" : ", ", code, meaning);
  }
  out +=
      wrap_text(fmt::format("Flags are written --with_under_scores or --with-dashes. Exit codes: {}.", codes),
                0, width);
  return out;
}

std::string command_help(Command* command, int64_t width) {
  FlagTable table;
  command->declare_flags(&table);
  std::string out = usage_line(*command, width) + "\n";
  out +=
      wrap_text(command->description().empty() ? command->summary() + "." : command->description(), 0, width);
  std::string section;
  for (const Flag& flag : table.flags()) {
    if (!flag.listed || flag.status != FlagStatus::kHonoured) continue;
    if (flag.section != section) {
      section = flag.section;
      out += fmt::format("\n{}:\n", section);
    }
    out += flag_entry(flag, width);
  }
  out += unsupported_list(table, FlagStatus::kIgnored, "Accepted without effect:", width);
  out += unsupported_list(table, FlagStatus::kRefused, "Refused unless given their default:", width);
  if (!command->examples().empty()) {
    out += "\nExamples:\n";
    for (const std::string& example : command->examples()) out += "  " + example + "\n";
  }
  return out;
}

std::string flag_reference(const Commands& all) {
  std::string out =
      "# Flags\n\n"
      "Generated by `tessera help --markdown`; a test compares. Flags are written `--with_under_scores` or "
      "`--with-dashes`, values follow as `--flag value` or `--flag=value`, booleans also as `--flag` and "
      "`--no_flag`.\n\n";
  for (const auto& command : all) out += markdown_command(command.get());
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

}  // namespace tessera
