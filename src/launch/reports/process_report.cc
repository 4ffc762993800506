#include "launch/reports/process_report.h"

#include <elfutils/libdwfl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "launch/reports/process_modules.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Per thread; deeper stacks are truncated.
constexpr int kMaxFrames = 64;

// Reads a file of /proc, where file sizes are unknown; "" if it cannot be read.
std::string read_proc_file(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::string result = text.str();
  while (!result.empty() && (result.back() == '\n' || result.back() == '\0')) result.pop_back();
  return result;
}

// "Name:   value" of /proc/PID/status.
std::string status_field(const std::string& status, std::string_view name) {
  const size_t begin = status.find(fmt::format("{}:", name));
  if (begin == std::string::npos) return "";
  const size_t value = status.find_first_not_of(" \t", begin + name.size() + 1);
  return status.substr(value, status.find('\n', value) - value);
}

// "R (running)" becomes "running".
std::string state_of(const std::string& status) {
  const std::string state = status_field(status, "State");
  const size_t open = state.find('('), close = state.find(')');
  return close == std::string::npos ? "in an unknown state" : state.substr(open + 1, close - open - 1);
}

using Frames = std::vector<std::string>;

// The stacks of a process's threads.
class Stacks {
 public:
  explicit Stacks(pid_t pid) : modules_(pid), error_(modules_.error()) {
    if (error_.empty() && dwfl_linux_proc_attach(modules_.dwfl(), pid, false) != 0) error_ = libdw_error();
  }

  // Empty, with an error(), if it cannot be determined.
  Frames of_thread(pid_t thread) {
    if (!error_.empty()) return {};
    Walk walk = {modules_, {}, false};
    error_.clear();
    // If the walk ends early, for example at a function without unwind tables, the frames found so far are
    // kept.
    if (dwfl_getthread_frames(modules_.dwfl(), thread, &Stacks::take_frame, &walk) != 0) {
      if (walk.frames.empty()) {
        thread_error_ = libdw_error();
      } else if (walk.ends_without_name) {
        walk.frames.back() += " in generated code, whose callers are unknown";
      }
    }
    return walk.frames;
  }
  const std::string& error() const { return error_.empty() ? thread_error_ : error_; }

 private:
  struct Walk {
    const ProcessModules& modules;
    Frames frames;
    bool ends_without_name;
  };

  static int take_frame(Dwfl_Frame* frame, void* data) {
    auto& walk = *static_cast<Walk*>(data);
    Dwarf_Addr address = 0;
    bool is_activation = false;
    if (!dwfl_frame_pc(frame, &address, &is_activation)) return DWARF_CB_ABORT;
    // A return address may be the first address of the next function.
    const std::string name = walk.modules.function_at(address - (is_activation ? 0 : 1));
    walk.ends_without_name = name.empty();
    walk.frames.push_back(name.empty() ? fmt::format("{:#x}", address) : name);
    return std::ssize(walk.frames) < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
  }

  ProcessModules modules_;
  std::string error_;
  std::string thread_error_;
};

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  fs::directory_iterator entry(fmt::format("/proc/{}/task", pid), error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    threads.push_back(std::atoi(entry->path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

}  // namespace

ProcessState process_state(pid_t pid) {
  const std::string status = read_proc_file(fmt::format("/proc/{}/status", pid));
  const std::string state = status.empty() ? "zombie" : state_of(status);
  if (state == "zombie") return {};
  const auto kilobytes = [&](std::string_view name) {
    return std::atoll(status_field(status, name).c_str()) * 1024;
  };
  return {.is_there = true,
          .state = state,
          .resident_bytes = kilobytes("VmRSS"),
          .peak_resident_bytes = kilobytes("VmHWM")};
}

std::string describe_process(pid_t pid) {
  const fs::path folder = fmt::format("/proc/{}", pid);
  const std::string status = read_proc_file(folder / "status");
  if (status.empty()) return fmt::format("process {} is gone", pid);
  const std::vector<pid_t> threads = threads_of(pid);
  std::string text =
      fmt::format("process {} ({}): {}, {} resident, {}", pid, status_field(status, "Name"), state_of(status),
                  status_field(status, "VmRSS"), count_of(std::ssize(threads), "thread"));
  // Read the states before tracing stops the threads.
  std::vector<std::string> lines;
  for (const pid_t thread : threads) {
    const fs::path of_thread = folder / "task" / std::to_string(thread);
    const std::string waiting_in = read_proc_file(of_thread / "wchan");
    lines.push_back(fmt::format("\n  thread {} ({}): {}{}", thread, read_proc_file(of_thread / "comm"),
                                state_of(read_proc_file(of_thread / "status")),
                                waiting_in.empty() || waiting_in == "0" ? "" : ", in " + waiting_in));
  }
  Stacks stacks(pid);
  for (size_t i = 0; i < threads.size(); ++i) {
    text += lines[i];
    for (const std::string& frame : stacks.of_thread(threads[i])) text += "\n    " + frame;
  }
  if (!stacks.error().empty()) text += fmt::format("\n  stacks are incomplete: {}", stacks.error());
  return text;
}

}  // namespace tessera
