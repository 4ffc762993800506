// Checks that read what the kernel counts and says, and disturb nobody. `root` stands for "/" in tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "cluster/check.h"
#include "platform/topology.h"

namespace tessera {

// Throttling of the processors, counted since the machine or the container started.
struct ThrottleCounters {
  std::optional<int64_t> thermal_events;  // of all processors
  std::optional<double> quota_s;          // cgroup CPU quota
};
ThrottleCounters throttle_counters(const std::filesystem::path& root = "/");

// thermal_throttling and cpu_quota, from the counters before and after `seconds` of work. The quota fails if
// it held this process back for more than a tenth of that.
std::vector<Check> check_throttling(const ThrottleCounters& before, const ThrottleCounters& after,
                                    double seconds);

// EDAC's counters, corrected errors as a rate since the start, and memory that the kernel has given up.
Check check_memory_errors(const std::filesystem::path& root = "/");
// Machine check exceptions.
Check check_machine_checks(const std::filesystem::path& root = "/");

// memory_pressure and io_pressure; cpu_pressure too, which is only advice, for a machine that should be idle.
std::vector<Check> check_pressure(bool should_be_idle, const std::filesystem::path& root = "/");

struct ClockState {
  bool is_known = false;
  bool is_synchronized = false;
  double offset_s = 0;
};
ClockState clock_state();  // adjtimex(2)
Check check_clock(const ClockState& state);
Check check_clock_source(const std::filesystem::path& root = "/");

Check check_huge_pages(const HugePages& pages);

// The worst interface counts, loopback aside. A container sees only its own.
Check check_network_errors(const std::filesystem::path& root = "/");
// TCP segments sent again since the start of the machine or container.
Check check_network_retransmits(const std::filesystem::path& root = "/");

// Checks how much memory of the machine, or the container, is free.
Check check_free_memory(int64_t free_bytes, int64_t limit_bytes);

}  // namespace tessera
