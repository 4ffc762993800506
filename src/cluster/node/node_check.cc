#include "cluster/node/node_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cluster/kernel_log.h"
#include "cluster/node/core_speed.h"
#include "cluster/node/nvidia_checks.h"
#include "cluster/node/system_checks.h"
#include "cluster/storage/storage_check.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDiskBytes = int64_t{64} << 20;
constexpr double kMinDiskBytes = 1e9;
// Shares of the time for what takes any.
constexpr double kSpeedShare = 0.35, kDiskShare = 0.3, kPeerShare = 0.3;
constexpr double kPassiveSeconds = 0.5;  // in which throttling is counted

Check instructions(const std::string& required) {
  const std::optional<Isa> isa = parse_isa(required);
  return check_instructions(std::string(isa_name(strongest_isa())), required,
                            isa ? machine_refusal(*isa) : "", cpu_features().fault);
}

class NodeChecker {
 public:
  explicit NodeChecker(const NodeCheckOptions& options) : options_(options) {}

  std::vector<Check> run() {
    const NvidiaCards cards = read_nvidia_cards();
    add([&] { return check_pressure(!options_.is_passive, options_.root); });
    add([&] { return std::vector{instructions(options_.instruction_set)}; });
    add([&] { return options_.is_passive ? watch() : work(); });
    add([&] { return check_nvidia_cards(cards, read_nvidia_cards(), options_.num_cards); });
    add([&] { return system(); });
    if (!options_.is_passive) add([&] { return disk(); });
    if (!options_.peers.empty())
      add([&] { return check_peers(options_.peers, kPeerShare * options_.seconds); });
    return std::move(checks_);
  }

 private:
  NvidiaCards read_nvidia_cards() const {
    return options_.nvml_library.empty() ? NvidiaCards() : nvidia_cards(options_.nvml_library);
  }

  void add(const std::function<std::vector<Check>()>& part) {
    try {
      for (Check& check : part()) checks_.push_back(std::move(check));
    } catch (const std::exception& error) {
      checks_.push_back(unknown("node_check", printable(error.what(), 300)));
    }
  }

  std::vector<Check> watch() const {
    const ThrottleCounters before = throttle_counters(options_.root);
    std::this_thread::sleep_for(std::chrono::duration<double>(kPassiveSeconds));
    return check_throttling(before, throttle_counters(options_.root), kPassiveSeconds);
  }

  std::vector<Check> work() const {
    const ThrottleCounters before = throttle_counters(options_.root);
    const Stopwatch stopwatch;
    const CoreTrial trial = measure_cores(kSpeedShare * options_.seconds);
    std::vector<Check> checks =
        check_throttling(before, throttle_counters(options_.root), stopwatch.seconds());
    checks.push_back(check_products(trial));
    if (trial.instruction_set.empty()) {
      checks.push_back(skipped("compute", "no instruction set that can be measured"));
    } else {
      checks.push_back(compare_with_fleet("compute",
                                          tflops_of(trial) / static_cast<double>(trial.cores.size()),
                                          "TFLOPS a core", options_.figures, options_.min_share));
    }
    checks.push_back(check_slow_cores(trial));
    if (trial.why_no_bandwidth.empty()) {
      checks.push_back(compare_with_fleet("memory_bandwidth", gb_per_s_of(trial), "GB/s", options_.figures,
                                          options_.min_share));
    } else {
      checks.push_back(skipped("memory_bandwidth", trial.why_no_bandwidth));
    }
    checks.push_back(check_slow_numa_nodes(trial, numa_nodes(options_.root)));
    checks.push_back(check_memory_pattern(trial));
    return checks;
  }

  std::vector<Check> system() const {
    const fs::path& root = options_.root;
    const MemoryInfo memory = memory_info();
    return {check_memory_errors(root),
            check_machine_checks(root),
            check_kernel_log(kernel_messages(root), uptime_s(root).value_or(0)),
            check_free_memory(
                memory.free_for_process_bytes,
                std::min(memory.total_bytes, memory.cgroup_limit_bytes.value_or(memory.total_bytes))),
            check_huge_pages(huge_pages(root)),
            check_clock(clock_state()),
            check_clock_source(root),
            check_network_errors(root),
            check_network_retransmits(root)};
  }

  std::vector<Check> disk() const {
    const bool asked = !options_.folder.empty();
    std::error_code error;
    const fs::path folder = asked ? options_.folder : fs::temp_directory_path(error);
    if (error)
      return {skipped("disk", "no folder for temporary files"), skipped("disk_space", "no such folder")};
    return check_disk(try_folder(folder, {.max_bytes = kDiskBytes, .seconds = kDiskShare * options_.seconds}),
                      folder, asked);
  }

  const NodeCheckOptions& options_;
  std::vector<Check> checks_;
};

}  // namespace

std::vector<Check> check_node(const NodeCheckOptions& options) { return NodeChecker(options).run(); }

Check check_instructions(const std::string& best, const std::string& required, const std::string& refusal,
                         const std::string& fault) {
  Check check = {.name = "instructions", .message = best + " works"};
  if (fault.empty() && refusal.empty()) return check;
  check.outcome = CheckOutcome::kFailed;
  check.message =
      fmt::format("{}{}; the best that works is {}{}",
                  refusal.empty() ? "" : required + " is required: ", refusal.empty() ? fault : refusal, best,
                  fault.empty() ? "" : ": replace the node");
  return check;
}

std::vector<Check> check_disk(const TrialReport& report, const fs::path& folder, bool asked) {
  std::vector<Check> checks;
  const std::string error = report.text("error"), wrong = report.text("wrong");
  const auto fsync_ms = report.number("fsync_ms");
  const auto failed = [&](const std::string& message) {
    checks.push_back({.name = "disk", .outcome = CheckOutcome::kFailed, .message = message});
  };
  if (report.timed_out) {
    failed(fmt::format("{}: no answer while in stage {}: the disk or its server hangs", folder.string(),
                       report.last_stage));
  } else if (report.last_stage == "create" && !asked) {
    checks.push_back(
        skipped("disk", fmt::format("{}: {}; --folder names another one", folder.string(), error)));
  } else if (!error.empty() || !wrong.empty()) {
    failed(fmt::format("{}: {}", folder.string(), error.empty() ? wrong : error));
  } else if (!fsync_ms || !report.is_complete) {
    checks.push_back(unknown("disk", folder.string() + ": the trial ended early"));
  } else {
    checks.push_back(
        at_most("disk", *fsync_ms, kMaxFsyncMs, "ms",
                fmt::format("{}: fsync {:.3g} ms, writes {:.0f} MB/s, reads {:.0f} MB/s{}", folder.string(),
                            *fsync_ms, report.number("write_mb_per_s").value_or(0),
                            report.number("read_mb_per_s").value_or(0),
                            *fsync_ms > kMaxFsyncMs ? ": the disk is failing or overloaded" : "")));
  }
  checks.push_back(check_space("disk_space", report, kMinDiskBytes));
  checks.back().message = folder.string() + ": " + checks.back().message;
  return checks;
}

}  // namespace tessera
