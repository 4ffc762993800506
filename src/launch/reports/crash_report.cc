#include "launch/reports/crash_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "launch/reports/rank_report.h"

namespace tessera {
namespace {

constexpr size_t kMaxCallers = 3;
constexpr int64_t kMaxNameChars = 100;

// "void tessera::(anonymous namespace)::f<int>(int)::{lambda(long)#1}::operator()(long) const" becomes
// "tessera::f<int>::{lambda#1}::operator()", without argument and return types.
std::string short_name(std::string_view name) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)::", kCall = "operator()";
  std::string text;
  int parentheses = 0, angles = 0;
  for (size_t at = 0; at < name.size(); ++at) {
    if (name.substr(at).starts_with(kUnnamed)) {
      at += kUnnamed.size() - 1;
    } else if (name.substr(at).starts_with(kCall)) {
      if (parentheses == 0) text += kCall;
      at += kCall.size() - 1;
    } else if (name[at] == '(' || name[at] == ')') {
      parentheses += name[at] == '(' ? 1 : -1;
    } else if (parentheses == 0) {
      angles += name[at] == '<' ? 1 : name[at] == '>' ? -1 : 0;
      if (name[at] == ' ' && angles == 0 && !text.ends_with("operator")) {
        if (name.substr(0, at).ends_with(')')) break;  // " const", " [clone ...]"
        text.clear();                                  // a return type
      } else {
        text += name[at];
      }
    }
  }
  return printable(text, kMaxNameChars);
}

class Namer {
 public:
  Namer(const CrashRecord& record, const ProcessModules& modules)
      : modules_(modules), program_(modules.module_of(record.program)) {}

  // "" for an address outside any function.
  std::string name_of(uint64_t address) const {
    const std::string name = modules_.function_at(address);
    if (name.empty()) return "";
    const std::string line = modules_.line_at(address);
    return line.empty() ? short_name(name) : fmt::format("{} ({})", short_name(name), line);
  }

  // Names of the innermost program functions among these return addresses.
  std::vector<std::string> callers(std::span<const uint64_t> addresses) const {
    std::vector<std::string> names;
    for (const uint64_t address : addresses) {
      if (names.size() == kMaxCallers) break;
      // The call instruction precedes its return address.
      if (program_ == nullptr || modules_.module_of(address - 1) != program_) continue;
      const std::string name = name_of(address - 1);
      if (!name.empty() && (names.empty() || names.back() != name)) names.push_back(name);
    }
    return names;
  }

 private:
  const ProcessModules& modules_;
  Dwfl_Module* program_;
};

std::string cause_of(const CrashRecord& record) {
  if (record.code <= 0) {
    return record.sender == record.pid ? "" : fmt::format(", sent by process {}", record.sender);
  }
  const char* meaning = sigdescr_np(record.signal);
  return fmt::format(", {} at address {:#x}", lower_case(meaning == nullptr ? "fault" : meaning),
                     record.address);
}

}  // namespace

std::string describe_crash(const CrashRecord& record, std::span<const uint64_t> stack,
                           const ProcessModules& modules) {
  const Namer namer(record, modules);
  const auto frames = std::span(record.frames).first(static_cast<size_t>(record.num_frames));
  std::string text = fmt::format("killed by {}{}", signal_text(record.signal), cause_of(record));
  std::vector<std::string> names;
  // A signal sent by the process to itself, as by abort(), comes from deep inside the C library.
  if (!(record.code <= 0 && record.sender == record.pid)) {
    names.push_back(namer.name_of(frames[0]));
    if (names[0].empty()) names[0] = fmt::format("unknown code at {:#x}", frames[0]);
  }
  const std::vector<std::string> callers = namer.callers(frames.subspan(1));
  names.insert(names.end(), callers.begin(), callers.end());
  if (!names.empty()) text += fmt::format(", in {}", fmt::join(names, " <- "));
  if (callers.empty()) {
    const std::vector<std::string> guesses = namer.callers(stack);
    if (!guesses.empty()) text += fmt::format(", probably called by {}", fmt::join(guesses, " <- "));
  }
  if (!modules.error().empty()) text += fmt::format(" (no names: {})", modules.error());
  return text;
}

int run_describe_crash() {
  std::string input;
  std::array<char, 4096> piece;
  for (ssize_t count = 0; (count = read(STDIN_FILENO, piece.data(), piece.size())) > 0;) {
    input.append(piece.data(), static_cast<size_t>(count));
  }
  CrashRecord record;
  if (input.size() < sizeof(record)) return static_cast<int>(ExitCode::kUsage);
  std::memcpy(&record, input.data(), sizeof(record));
  if (record.num_frames < 1 || record.num_frames > std::ssize(record.frames)) {
    return static_cast<int>(ExitCode::kUsage);
  }
  std::vector<uint64_t> stack((input.size() - sizeof(record)) / sizeof(uint64_t));
  std::memcpy(stack.data(), input.data() + sizeof(record), stack.size() * sizeof(uint64_t));

  unsetenv("DEBUGINFOD_URLS");  // do not wait for a server to get names
  const std::string message = describe_crash(record, stack, ProcessModules(record.pid));
  const bool left = leave_error_report({.message = message, .code = 128 + record.signal});
  if (left && agent_shows_errors(record.parent)) return 0;
  const std::string who = record.rank < 0 ? "" : fmt::format("rank {} was ", record.rank);
  const std::string line = fmt::format("error: {}{}\n", who, message);
  return write(STDOUT_FILENO, line.data(), line.size()) == std::ssize(line) ? 0 : 1;
}

}  // namespace tessera
