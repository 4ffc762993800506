#include "cli/run/resume_command.h"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/text.h"
#include "comm/ranks/launch_variables.h"
#include "launch/reports/rank_report.h"

namespace tessera {
namespace {

constexpr const char* kFlag = "--resume_from_checkpoint";
constexpr const char* kValue = "auto";

}  // namespace

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::string resume_command(std::vector<std::string> command_line) {
  const char* of_control = std::getenv(kResumeCommandVariable);
  if (std::getenv(kControlVariable) != nullptr && of_control != nullptr) return of_control;
  const auto end_of_flags = std::find(command_line.begin(), command_line.end(), "--");
  const auto is_flag = [](std::string word) {
    std::replace(word.begin(), word.end(), '-', '_');
    return word == "__resume_from_checkpoint";
  };
  const auto given = std::find_if(command_line.begin(), end_of_flags, is_flag);
  const bool is_given =
      given != end_of_flags && std::next(given) != end_of_flags && *std::next(given) == kValue;
  // If a flag is given twice, the last one counts.
  if (!is_given) command_line.insert(end_of_flags, {kFlag, kValue});
  std::string text;
  for (const std::string& word : command_line) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::string describe_resuming(const World& world) {
  const char* command = std::getenv(kResumeCommandVariable);
  if (command != nullptr && *command != '\0' && agent_shows_errors(getppid()))
    return world.num_nodes == 1 ? command : fmt::format("{} (and so on the other nodes)", command);
  if (world.is_single()) return resume_command(own_command_line());
  return fmt::format("restart all ranks in the same way, with {} {}", kFlag, kValue);
}

}  // namespace tessera
