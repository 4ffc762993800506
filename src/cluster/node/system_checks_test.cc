#include "cluster/node/system_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/kernel_log.h"
#include "fake_machine.h"
#include "support/check_named.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Throttling, HotProcessorFailsAndAnOldCountDoesNot) {
  FakeMachine machine;
  const auto set = [&](int cpu, int count) {
    machine.write(fmt::format("sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count", cpu),
                  std::to_string(count));
  };
  set(0, 5);
  set(11, 0);
  const ThrottleCounters before = throttle_counters(machine.root());
  EXPECT_EQ(before.thermal_events, 5);
  EXPECT_EQ(check_named(check_throttling(before, throttle_counters(machine.root()), 2), "thermal_throttling")
                .outcome,
            CheckOutcome::kOk);
  set(11, 3);
  const Check check =
      check_named(check_throttling(before, throttle_counters(machine.root()), 2), "thermal_throttling");
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check.value, 3);
  EXPECT_THAT(check.message, AllOf(HasSubstr("throttled 3 times in 2.0 s"), HasSubstr("replace the node")));
}

TEST(Throttling, QuotaFailsOnlyIfItHoldsTheContainerBack) {
  FakeMachine machine;
  machine.set_cpu_quota(2);
  machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\nthrottled_usec 1000000\n");
  const ThrottleCounters before = throttle_counters(machine.root());
  machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\nthrottled_usec 1100000\n");
  EXPECT_EQ(check_named(check_throttling(before, throttle_counters(machine.root()), 2), "cpu_quota").outcome,
            CheckOutcome::kOk);
  machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\nthrottled_usec 1900000\n");
  const Check check =
      check_named(check_throttling(before, throttle_counters(machine.root()), 2), "cpu_quota");
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message, HasSubstr("stopped its processes for 0.9 s of 2.0 s"));
}

TEST(MemoryErrors, UncorrectedOnesFailAtOnceAndNameTheController) {
  FakeMachine machine;
  machine.write("sys/devices/system/edac/mc/mc0/ce_count", "3");
  machine.write("sys/devices/system/edac/mc/mc0/ue_count", "0");
  machine.write("sys/devices/system/edac/mc/mc1/ce_count", "0");
  machine.write("sys/devices/system/edac/mc/mc1/ue_count", "0");
  EXPECT_EQ(check_memory_errors(machine.root()).outcome, CheckOutcome::kOk);
  machine.write("sys/devices/system/edac/mc/mc1/ue_count", "7");
  const Check check = check_memory_errors(machine.root());
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message, HasSubstr("7 uncorrected memory errors at controller mc1"));
}

TEST(MemoryErrors, CorrectedOnesFailByTheirRate) {
  FakeMachine machine;
  machine.write("sys/devices/system/edac/mc/mc0/ce_count", "1500");
  machine.write("sys/devices/system/edac/mc/mc0/ue_count", "0");
  machine.write("proc/uptime", "2592000.00 1.00\n");  // 30 days
  EXPECT_EQ(check_memory_errors(machine.root()).outcome, CheckOutcome::kOk);
  machine.write("proc/uptime", "3600.00 1.00\n");  // an hour counts as a day
  const Check check = check_memory_errors(machine.root());
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check.value, 1500);
  EXPECT_THAT(check.message, HasSubstr("a memory module is failing"));
}

TEST(MemoryErrors, MemoryThatTheKernelGaveUpFails) {
  FakeMachine machine;
  EXPECT_EQ(check_memory_errors(machine.root()).outcome, CheckOutcome::kSkipped);
  machine.write("proc/meminfo", "MemTotal: 100 kB\nHardwareCorrupted:     0 kB\n");
  EXPECT_EQ(check_memory_errors(machine.root()).outcome, CheckOutcome::kOk);
  machine.write("proc/meminfo", "MemTotal: 100 kB\nHardwareCorrupted:     4 kB\n");
  EXPECT_THAT(check_memory_errors(machine.root()).message, HasSubstr("given up 4 kB of damaged memory"));
  EXPECT_EQ(check_memory_errors(machine.root()).outcome, CheckOutcome::kFailed);
}

TEST(MachineChecks, ExceptionsFailAndAMaskedFileIsSkipped) {
  FakeMachine machine;
  EXPECT_EQ(check_machine_checks(machine.root()).outcome, CheckOutcome::kSkipped);
  machine.write("proc/interrupts", "           CPU0  CPU1\n MCE:   0   0   Machine check exceptions\n");
  EXPECT_EQ(check_machine_checks(machine.root()).outcome, CheckOutcome::kOk);
  machine.write("proc/interrupts",
                "           CPU0  CPU1\n MCE:   1   2   Machine check exceptions\n MCP: 9 9 polls\n");
  EXPECT_EQ(check_machine_checks(machine.root()).outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check_machine_checks(machine.root()).value, 3);
}

TEST(Pressure, EachResourceHasItsLimit) {
  FakeMachine machine;
  EXPECT_EQ(check_named(check_pressure(true, machine.root()), "io_pressure").outcome, CheckOutcome::kSkipped);
  const auto write = [&](const std::string& resource, double some, double full) {
    machine.write("proc/pressure/" + resource,
                  fmt::format("some avg10=0.00 avg60={:.2f} avg300=0.00 total=1\n"
                              "full avg10=0.00 avg60={:.2f} avg300=0.00 total=1\n",
                              some, full));
  };
  write("memory", 90, 9);
  write("io", 90, 50);
  write("cpu", 49, 0);
  for (const Check& check : check_pressure(true, machine.root()))
    EXPECT_EQ(check.outcome, CheckOutcome::kOk) << check.name;
  write("memory", 90, 11);
  write("io", 90, 61);
  write("cpu", 51, 0);
  const std::vector<Check> checks = check_pressure(true, machine.root());
  EXPECT_EQ(check_named(checks, "memory_pressure").outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check_named(checks, "io_pressure").outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check_named(checks, "cpu_pressure").outcome, CheckOutcome::kAdvice);
  EXPECT_EQ(check_pressure(/*should_be_idle=*/false, machine.root()).size(), 2u)
      << "a training keeps processors busy";
}

TEST(Clock, UnsynchronizedOrFarOffFails) {
  EXPECT_EQ(check_clock({}).outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(check_clock({.is_known = true, .is_synchronized = true, .offset_s = -0.002}).outcome,
            CheckOutcome::kOk);
  EXPECT_EQ(check_clock({.is_known = true, .is_synchronized = true, .offset_s = -0.2}).outcome,
            CheckOutcome::kFailed);
  EXPECT_THAT(check_clock({.is_known = true, .is_synchronized = false}).message,
              HasSubstr("not synchronized"));
  EXPECT_EQ(check_clock({.is_known = true, .is_synchronized = false}).outcome, CheckOutcome::kFailed);
}

TEST(Clock, SlowSourcesFail) {
  FakeMachine machine;
  const std::string file = "sys/devices/system/clocksource/clocksource0/current_clocksource";
  EXPECT_EQ(check_clock_source(machine.root()).outcome, CheckOutcome::kSkipped);
  for (const char* good : {"tsc", "kvm-clock"}) {
    machine.write(file, good);
    EXPECT_EQ(check_clock_source(machine.root()).outcome, CheckOutcome::kOk) << good;
  }
  machine.write(file, "hpet\n");
  EXPECT_EQ(check_clock_source(machine.root()).outcome, CheckOutcome::kFailed);
}

TEST(HugePagesCheck, NeverFails) {
  EXPECT_EQ(check_huge_pages({}).outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(check_huge_pages({.transparent = "madvise", .pools = {}}).outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_huge_pages({.transparent = "never", .pools = {}}).outcome, CheckOutcome::kFailed);
}

TEST(NetworkErrors, ShareOfTheWorstInterfaceCounts) {
  FakeMachine machine;
  const auto write = [&](const std::string& name, int64_t packets, int64_t errors) {
    for (const char* file : {"rx_packets", "tx_packets"}) {
      machine.write("sys/class/net/" + name + "/statistics/" + file, std::to_string(packets));
    }
    machine.write("sys/class/net/" + name + "/statistics/rx_errors", std::to_string(errors));
  };
  write("lo", 10, 10);
  EXPECT_EQ(check_network_errors(machine.root()).outcome, CheckOutcome::kSkipped);
  write("eth0", 5'000'000, 0);
  write("eth1", 5'000'000, 900);
  EXPECT_EQ(check_network_errors(machine.root()).outcome, CheckOutcome::kOk);
  write("eth1", 5'000'000, 2000);
  const Check check = check_network_errors(machine.root());
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message, HasSubstr("2000 faulty packets on eth1"));
  write("eth1", 100, 20);
  EXPECT_EQ(check_network_errors(machine.root()).outcome, CheckOutcome::kOk) << "twenty may be chance";
}

TEST(NetworkRetransmits, ManyFailAndFewMayBeChance) {
  FakeMachine machine;
  const auto write = [&](int64_t sent, int64_t resent) {
    machine.write("proc/self/net/snmp",
                  fmt::format("Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm OutSegs RetransSegs\n"
                              "Tcp: 1 {} {}\n",
                              sent, resent));
  };
  EXPECT_EQ(check_network_retransmits(machine.root()).outcome, CheckOutcome::kSkipped);
  write(1000, 100);
  EXPECT_EQ(check_network_retransmits(machine.root()).outcome, CheckOutcome::kOk);
  write(100'000, 1900);
  EXPECT_EQ(check_network_retransmits(machine.root()).outcome, CheckOutcome::kOk);
  write(100'000, 3000);
  EXPECT_EQ(check_network_retransmits(machine.root()).outcome, CheckOutcome::kFailed);
}

TEST(FreeMemory, LessThanATenthFails) {
  EXPECT_EQ(check_free_memory(10, 100).outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_free_memory(9, 100).outcome, CheckOutcome::kFailed);
  EXPECT_EQ(check_free_memory(0, 0).outcome, CheckOutcome::kSkipped);
}

class KernelLog : public testing::Test {
 protected:
  Check check(const std::string& records, double uptime = 100'000) {
    machine_.write("dev/kmsg", records);
    return check_kernel_log(kernel_messages(machine_.root()), uptime);
  }
  FakeMachine machine_;
};

TEST_F(KernelLog, WithoutPermissionItIsSkipped) {
  EXPECT_EQ(check_kernel_log(kernel_messages(machine_.root()), 10).outcome, CheckOutcome::kSkipped);
}

TEST_F(KernelLog, ErrorsOfTheLastDayFail) {
  EXPECT_EQ(check("6,339,99000000000,-;eth0: link up\n SUBSYSTEM=net\n").outcome, CheckOutcome::kOk);
  for (const char* text : {"mce: Uncorrected hardware memory error in user-access at 1b2c3d4e5f",
                           "{1}[Hardware Error]: event severity: fatal",
                           "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
                           "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [tessera:4711]",
                           "INFO: task tessera:4711 blocked for more than 120 seconds.",
                           "I/O error, dev nvme0n1, sector 12345 op 0x1:(WRITE) flags 0x0",
                           "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1436: inode #2",
                           "NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5000 ms",
                           "critical medium error, dev sda, sector 9 op 0x0:(READ) flags 0x0",
                           "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)",
                           "CPU3: Core temperature is above threshold, cpu clock is throttled"}) {
    const Check found = check(fmt::format("6,1,98000000000,-;hello\n3,2,99000000000,-;{}\n", text));
    EXPECT_EQ(found.outcome, CheckOutcome::kFailed) << text;
    EXPECT_THAT(found.message,
                AllOf(HasSubstr("1 error of the last day"), HasSubstr(std::string(text).substr(0, 60))));
  }
}

TEST_F(KernelLog, DrivesWithoutAMediumDoNotCount) {
  for (const char* drive : {"fd0", "sr0"}) {
    const std::string text =
        fmt::format("blk_update_request: I/O error, dev {}, sector 0 op 0x0:(READ)", drive);
    EXPECT_EQ(check(fmt::format("3,2,99000000000,-;{}\n", text)).outcome, CheckOutcome::kOk) << text;
  }
}

TEST_F(KernelLog, ErrorsBeforeThatDoNotCount) {
  EXPECT_EQ(check("3,2,1000000,-;I/O error, dev sda, sector 1\n").outcome, CheckOutcome::kOk);
}

TEST_F(KernelLog, MalformedRecordsAreLeftOut) {
  EXPECT_EQ(check(";\n,,;\n6\n1,2\n\n1;2,3,4\nI/O error, dev sda\n").outcome, CheckOutcome::kOk);
}

}  // namespace
}  // namespace tessera
