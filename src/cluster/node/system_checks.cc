#include "cluster/node/system_checks.h"

#include <fmt/format.h>
#include <sys/timex.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "platform/cgroup.h"
#include "platform/system.h"
#include "platform/system_counters.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// DIMMs with a defect report hundreds an hour, others a few in a year (Schroeder et al., DRAM Errors in the
// Wild).
constexpr double kMaxCorrectedPerDay = 100;
constexpr double kSecondsPerDay = 86'400;
constexpr double kMaxQuotaShare = 0.1;
// Shares of the time, in percent, in which all tasks (full) or some (some) waited.
constexpr double kMaxMemoryPressure = 10;
constexpr double kMaxIoPressure = 60;  // a checkpoint may keep a disk busy for most of a minute
constexpr double kMaxCpuPressure = 50;
constexpr double kMaxClockOffset = 0.1;
constexpr double kMinFreeMemory = 0.1;
constexpr double kMaxErrorShare = 1e-4;  // of packets; TCP suffers from more
constexpr double kMaxResentShare = 0.02;
constexpr int64_t kMinResent = 1000;  // a share of few is chance
constexpr int64_t kMinFaulty = 100;

// The value of avg60 in the line "some" or "full" of a pressure file.
std::optional<double> pressure_of_minute(const fs::path& file, const std::string& kind) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("avg60=");
    if (line.starts_with(kind) && at != std::string::npos) return std::strtod(line.c_str() + at + 6, nullptr);
  }
  return std::nullopt;
}

Check check_one_pressure(const fs::path& root, const std::string& resource, const std::string& kind,
                         double limit, const std::string& advice) {
  const std::string name = resource + "_pressure";
  const auto share = pressure_of_minute(root / "proc/pressure" / resource, kind);
  if (!share) return skipped(name, "the kernel does not measure pressure (PSI)");
  std::string message =
      fmt::format("{} tasks waited for {:.0f} % of the last minute", kind == "full" ? "all" : "some", *share);
  if (*share > limit) message += ": " + advice;
  return at_most(name, *share, limit, "%", message);
}

// "MCE:  0  1  2   Machine check exceptions": the sum over processors.
std::optional<int64_t> interrupts_of(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first != name + ":") continue;
    int64_t sum = 0;
    for (int64_t value = 0; words >> value;) sum += value;
    return sum;
  }
  return std::nullopt;
}

}  // namespace

ThrottleCounters throttle_counters(const fs::path& root) {
  ThrottleCounters counters;
  counters.quota_s = cgroup_throttled_s(root);
  for (const fs::path& cpu : entries_of(root / "sys/devices/system/cpu", "cpu")) {
    for (const char* file : {"core_throttle_count", "package_throttle_count"}) {
      const auto count = number_in(cpu / "thermal_throttle" / file);
      if (count) counters.thermal_events = counters.thermal_events.value_or(0) + *count;
    }
  }
  return counters;
}

std::vector<Check> check_throttling(const ThrottleCounters& before, const ThrottleCounters& after,
                                    double seconds) {
  std::vector<Check> checks;
  if (before.thermal_events && after.thermal_events) {
    const int64_t events = *after.thermal_events - *before.thermal_events;
    checks.push_back(at_most(
        "thermal_throttling", static_cast<double>(events), 0, "events",
        events > 0 ? fmt::format("processors were throttled {} times in {:.1f} s of work: too hot, or at "
                                 "their power limit; replace the node",
                                 events, seconds)
                   : fmt::format("none now, {} since the start", format_count(*after.thermal_events))));
  } else {
    checks.push_back(
        skipped("thermal_throttling", "the kernel does not count it here, as in most virtual machines"));
  }
  if (before.quota_s && after.quota_s) {
    const double share = (*after.quota_s - *before.quota_s) / seconds;
    checks.push_back(
        at_most("cpu_quota", share, kMaxQuotaShare, "share of time",
                share > kMaxQuotaShare
                    ? fmt::format("the CPU limit of the container stopped its processes for {:.1f} "
                                  "s of {:.1f} s: give it as many whole processors as it may use",
                                  share * seconds, seconds)
                    : "the container's CPU limit does not hold it back"));
  } else {
    checks.push_back(skipped("cpu_quota", "no CPU limit, or the kernel does not count throttling"));
  }
  return checks;
}

Check check_memory_errors(const fs::path& root) {
  std::optional<int64_t> corrected, uncorrected;
  std::string worst;
  int64_t most = 0;
  for (const fs::path& controller : entries_of(root / "sys/devices/system/edac/mc", "mc")) {
    const auto ce = number_in(controller / "ce_count"), ue = number_in(controller / "ue_count");
    if (ce) corrected = corrected.value_or(0) + *ce;
    if (ue) uncorrected = uncorrected.value_or(0) + *ue;
    if (ce.value_or(0) + ue.value_or(0) <= most) continue;
    most = ce.value_or(0) + ue.value_or(0);
    worst = controller.filename();
  }
  const auto given_up = number_of_line(root / "proc/meminfo", "HardwareCorrupted");
  if (given_up.value_or(0) > 0) {
    return at_most(
        "memory_errors", static_cast<double>(*given_up), 0, "kB",
        fmt::format("the kernel has given up {} kB of damaged memory: replace the node", *given_up));
  }
  if (uncorrected.value_or(0) > 0) {
    return at_most("memory_errors", static_cast<double>(*uncorrected), 0, "uncorrected errors",
                   fmt::format("{} at controller {}: replace the node",
                               count_of(*uncorrected, "uncorrected memory error"), worst));
  }
  if (corrected) {
    const double days = std::max(1.0, uptime_s(root).value_or(0) / kSecondsPerDay);
    const double rate = static_cast<double>(*corrected) / days;
    return at_most("memory_errors", rate, kMaxCorrectedPerDay, "corrected errors a day",
                   rate > kMaxCorrectedPerDay
                       ? fmt::format("{} in {:.1f} days, most at controller {}: a memory module is failing; "
                                     "replace the node",
                                     count_of(*corrected, "corrected memory error"), days, worst)
                       : count_of(*corrected, "corrected memory error"));
  }
  if (!given_up) return skipped("memory_errors", "neither EDAC nor HardwareCorrupted in /proc/meminfo here");
  return at_most("memory_errors", 0, 0, "kB", "no damaged memory; EDAC does not count here");
}

Check check_machine_checks(const fs::path& root) {
  const auto exceptions = interrupts_of(root / "proc/interrupts", "MCE");
  if (!exceptions) return skipped("machine_checks", "/proc/interrupts does not list them here");
  return at_most("machine_checks", static_cast<double>(*exceptions), 0, "exceptions",
                 *exceptions > 0 ? count_of(*exceptions, "machine check exception") +
                                       " since the start: the hardware is damaged; replace the node"
                                 : "none since the start");
}

std::vector<Check> check_pressure(bool should_be_idle, const fs::path& root) {
  std::vector<Check> checks = {check_one_pressure(root, "memory", "full", kMaxMemoryPressure,
                                                  "memory is short; look for other processes that use it"),
                               check_one_pressure(root, "io", "full", kMaxIoPressure,
                                                  "a disk is too slow or failing; see doctor --storage")};
  if (should_be_idle) {
    // Other checks measure its effect on speed, so this one only advises.
    Check check = check_one_pressure(root, "cpu", "some", kMaxCpuPressure,
                                     "other processes use the processors of this node");
    if (check.outcome == CheckOutcome::kFailed) check.outcome = CheckOutcome::kAdvice;
    checks.push_back(std::move(check));
  }
  return checks;
}

ClockState clock_state() {
  timex request = {};
  const int state = adjtimex(&request);
  if (state < 0) return {};
  const double units = (request.status & STA_NANO) != 0 ? 1e9 : 1e6;
  return {.is_known = true,
          .is_synchronized = state != TIME_ERROR && (request.status & STA_UNSYNC) == 0,
          .offset_s = static_cast<double>(request.offset) / units};
}

Check check_clock(const ClockState& state) {
  if (!state.is_known) return skipped("clock", "adjtimex() is not permitted here");
  const double offset = std::abs(state.offset_s);
  if (!state.is_synchronized) {
    return {.name = "clock",
            .outcome = CheckOutcome::kFailed,
            .message = "the kernel's clock is not synchronized: start chronyd (with rtcsync) on the node",
            .value = offset,
            .limit = kMaxClockOffset,
            .unit = "s"};
  }
  return at_most("clock", offset, kMaxClockOffset, "s",
                 offset > kMaxClockOffset
                     ? fmt::format("{:.3f} s off: check the time servers of the node", offset)
                     : fmt::format("synchronized, {:.3g} ms off", offset * 1e3));
}

Check check_clock_source(const fs::path& root) {
  // Reading any of these costs a microsecond and more, and goes through one device for all processors.
  constexpr std::array<const char*, 5> kSlow = {"acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies"};
  const auto source = first_line_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source) return skipped("clock_source", "the kernel does not say");
  const bool is_slow = std::ranges::find(kSlow, *source) != kSlow.end();
  return {.name = "clock_source",
          .outcome = is_slow ? CheckOutcome::kFailed : CheckOutcome::kOk,
          .message =
              is_slow ? *source + ": slow to read; the kernel distrusts the processor's own clock (tsc) here"
                      : *source};
}

Check check_huge_pages(const HugePages& pages) {
  if (pages.transparent.empty()) return skipped("huge_pages", "no transparent huge pages in this kernel");
  const bool is_never = pages.transparent == "never";
  return {.name = "huge_pages",
          .outcome = is_never ? CheckOutcome::kFailed : CheckOutcome::kOk,
          .message = is_never ? "transparent: never, which slows down large buffers: write madvise to "
                                "/sys/kernel/mm/transparent_hugepage/enabled on the node"
                              : "transparent: " + pages.transparent};
}

Check check_network_errors(const fs::path& root) {
  double worst = -1;
  int64_t faulty_of_worst = 0;
  std::string name_of_worst;
  for (const fs::path& interface : entries_of(root / "sys/class/net")) {
    const fs::path counters = interface / "statistics";
    const auto received = number_in(counters / "rx_packets"), sent = number_in(counters / "tx_packets");
    if (interface.filename() == "lo" || !received || !sent) continue;
    int64_t faulty = 0;
    for (const char* file : {"rx_errors", "tx_errors"}) faulty += number_in(counters / file).value_or(0);
    const double share =
        static_cast<double>(faulty) / static_cast<double>(std::max<int64_t>(1, *received + *sent));
    if (share <= worst) continue;
    worst = share;
    faulty_of_worst = faulty;
    name_of_worst = interface.filename();
  }
  if (worst < 0) return skipped("network_errors", "no interface but loopback");
  const bool is_bad = worst > kMaxErrorShare && faulty_of_worst >= kMinFaulty;
  return judged("network_errors", is_bad, worst, kMaxErrorShare, "share of packets",
                fmt::format("{} on {}{}", count_of(faulty_of_worst, "faulty packet"), name_of_worst,
                            is_bad ? ": cable, port or interface is bad; replace the node" : ""));
}

Check check_network_retransmits(const fs::path& root) {
  const std::optional<TcpSegments> tcp = tcp_segments(root / "proc/self");
  if (!tcp) return skipped("network_retransmits", "the kernel does not count them here");
  const double share =
      static_cast<double>(tcp->sent_again) / static_cast<double>(std::max<int64_t>(1, tcp->sent));
  const bool is_bad = share > kMaxResentShare && tcp->sent_again >= kMinResent;
  return judged(
      "network_retransmits", is_bad, share, kMaxResentShare, "share of segments",
      fmt::format("{} of {} TCP segments sent again{}", format_count(tcp->sent_again),
                  format_count(tcp->sent),
                  is_bad ? ": the network loses packets; tessera bench network finds the link" : ""));
}

Check check_free_memory(int64_t free_bytes, int64_t limit_bytes) {
  if (limit_bytes <= 0) return skipped("free_memory", "the kernel does not say how much memory there is");
  const double share = static_cast<double>(free_bytes) / static_cast<double>(limit_bytes);
  return at_least("free_memory", share, kMinFreeMemory, "share",
                  fmt::format("{} of {} free{}", format_bytes(free_bytes), format_bytes(limit_bytes),
                              share < kMinFreeMemory ? ": other processes use the rest" : ""));
}

}  // namespace tessera
