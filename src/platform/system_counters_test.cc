#include "platform/system_counters.h"

#include <gmock/gmock.h>

#include "fake_machine.h"
#include "platform/cgroup.h"

namespace tessera {
namespace {

TEST(SystemCounters, AreReadFromTheFilesOfTheKernel) {
  FakeMachine machine;
  machine.write("sys/devices/system/node/node10/numastat", "numa_hit 5\nnuma_miss 70\nnuma_foreign 1\n");
  machine.write("sys/devices/system/node/node2/numastat", "numa_hit 5\nnuma_miss 6\nnuma_foreign 1\n");
  machine.write("sys/devices/system/node/possible", "0-10\n");
  machine.write(
      "proc/self/net/snmp",
      "Ip: Forwarding RetransSegs\nIp: 1 64\nTcp: RtoMin MaxConn RetransSegs InErrs\nTcp: 200 -1 136 0\n");
  machine.write("proc/self/io", "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n");
  machine.write("proc/self/cgroup", "0::/pod/a\n");
  machine.write("sys/fs/cgroup/pod/cpu.stat", "usage_usec 1\nnr_throttled 2\nthrottled_usec 2500000\n");
  machine.write("sys/fs/cgroup/pod/a/cpu.stat", "usage_usec 1\nthrottled_usec 500000\n");
  const std::vector<NumaMisses> misses = numa_misses(machine.root());
  ASSERT_EQ(misses.size(), 2U);
  EXPECT_EQ(misses[0].node, 2);
  EXPECT_EQ(misses[0].pages, 6);
  EXPECT_EQ(misses[1].node, 10);
  EXPECT_EQ(tcp_retransmits(machine.root()), 136);
  ASSERT_TRUE(disk_traffic(machine.root()));
  EXPECT_EQ(disk_traffic(machine.root())->read_bytes, 4096);
  EXPECT_EQ(disk_traffic(machine.root())->written_bytes, 8192);
  EXPECT_EQ(cgroup_throttled_s(machine.root()), 3.0);
}

TEST(SystemCounters, ThrottlingIsFoundInTheFirstVersionOfControlGroups) {
  FakeMachine machine;
  machine.write("proc/self/cgroup", "3:cpu,cpuacct:/a\n");
  machine.write("sys/fs/cgroup/cpu/a/cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n");
  EXPECT_EQ(cgroup_throttled_s(machine.root()), 1.5);
}

TEST(SystemCounters, AreAbsentWhereTheKernelDoesNotCount) {
  FakeMachine machine;
  EXPECT_TRUE(numa_misses(machine.root()).empty());
  EXPECT_EQ(tcp_retransmits(machine.root()), std::nullopt);
  EXPECT_FALSE(disk_traffic(machine.root()));
  EXPECT_EQ(cgroup_throttled_s(machine.root()), std::nullopt);
  machine.write("proc/self/io", "read_bytes: 1\n");
  machine.write("proc/self/net/snmp", "Tcp: RtoMin\nTcp: 200\nUdp: RetransSegs\n");
  EXPECT_FALSE(disk_traffic(machine.root()));
  EXPECT_EQ(tcp_retransmits(machine.root()), std::nullopt);
}

}  // namespace
}  // namespace tessera
