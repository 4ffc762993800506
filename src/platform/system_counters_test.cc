#include "platform/system_counters.h"

#include <gmock/gmock.h>

#include "fake_machine.h"
#include "platform/cgroup.h"

namespace tessera {
namespace {

TEST(SystemCounters, AreReadFromTheFilesOfTheKernel) {
  FakeMachine machine;
  machine.write("sys/devices/system/node/node10/numastat", "numa_hit 5\nnuma_miss 70\nnuma_foreign 1\n");
  machine.write("sys/devices/system/node/node10/meminfo",
                "Node 10 MemTotal:  9 kB\nNode 10 MemFree:   3 kB\nNode 10 MemUsed: 6 kB\n");
  machine.write("sys/devices/system/node/node2/numastat", "numa_hit 5\nnuma_miss 6\nnuma_foreign 1\n");
  machine.write("sys/devices/system/node/possible", "0-10\n");
  machine.write(
      "proc/self/net/snmp",
      "Ip: Forwarding RetransSegs\nIp: 1 64\nTcp: RtoMin MaxConn OutSegs RetransSegs InErrs\nTcp: 200 -1 900 "
      "136 0\n");
  const std::string adapter = "sys/class/infiniband/efa_0/ports/1/";
  machine.write(adapter + "hw_counters/tx_bytes", "12884901888\n");
  machine.write(adapter + "hw_counters/lifespan", "12\n");
  machine.write(adapter + "counters/port_xmit_data", "N/A (no PMA)\n");
  machine.write("sys/class/infiniband/efa_0/node_type", "4: usnic\n");
  machine.write("proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2000.5\n\nprocessor : 1\ncpu MHz\t\t: 3000.5\n");
  machine.write("proc/self/io", "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n");
  machine.write("proc/self/cgroup", "0::/pod/a\n");
  machine.write("sys/fs/cgroup/pod/cpu.stat", "usage_usec 1\nnr_throttled 2\nthrottled_usec 2500000\n");
  machine.write("sys/fs/cgroup/pod/a/cpu.stat", "usage_usec 1\nthrottled_usec 500000\n");
  const std::vector<NumaMemory> nodes = numa_memory(machine.root());
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].node, 2);
  EXPECT_EQ(nodes[0].missed_pages, 6);
  EXPECT_EQ(nodes[1].node, 10);
  EXPECT_EQ(nodes[1].missed_pages, 70);
  EXPECT_EQ(nodes[1].free_bytes, 3072);
  ASSERT_TRUE(tcp_segments(machine.root() / "proc/self"));
  EXPECT_EQ(tcp_segments(machine.root() / "proc/self")->sent, 900);
  EXPECT_EQ(tcp_segments(machine.root() / "proc/self")->sent_again, 136);
  const std::vector<RdmaCounter> counters = rdma_counters(machine.root());
  ASSERT_EQ(counters.size(), 1U);
  EXPECT_EQ(counters[0].device + "/" + counters[0].port + "/" + counters[0].name, "efa_0/1/tx_bytes");
  EXPECT_EQ(counters[0].value, int64_t{12} << 30);
  EXPECT_EQ(cpu_frequency_hertz(machine.root()), 2500.5e6);
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

TEST(SystemCounters, OutOfMemoryKillsAreThoseOfTheInnermostGroupThatTells) {
  FakeMachine machine;
  machine.write("proc/self/cgroup", "0::/pod/a\n");
  EXPECT_EQ(cgroup_oom_kills(machine.root()), 0);
  machine.write("sys/fs/cgroup/pod/memory.events", "oom 9\noom_kill 5\n");
  EXPECT_EQ(cgroup_oom_kills(machine.root()), 5);
  machine.write("sys/fs/cgroup/pod/a/memory.events", "oom 9\noom_kill 3\noom_group_kill 0\n");
  EXPECT_EQ(cgroup_oom_kills(machine.root()), 3);
  // A file that the system refuses to look up.
  const std::filesystem::path events = machine.root() / "sys/fs/cgroup/pod/a/memory.events";
  std::filesystem::remove(events);
  std::filesystem::create_symlink(events, events);
  EXPECT_EQ(cgroup_oom_kills(machine.root()), 5);
}

TEST(SystemCounters, AreAbsentWhereTheKernelDoesNotCount) {
  FakeMachine machine;
  EXPECT_TRUE(numa_memory(machine.root()).empty());
  EXPECT_FALSE(tcp_segments(machine.root() / "proc/self"));
  EXPECT_TRUE(rdma_counters(machine.root()).empty());
  EXPECT_EQ(cpu_frequency_hertz(machine.root()), std::nullopt);
  EXPECT_FALSE(disk_traffic(machine.root()));
  EXPECT_EQ(cgroup_throttled_s(machine.root()), std::nullopt);
  machine.write("proc/self/io", "read_bytes: 1\n");
  machine.write("proc/self/net/snmp", "Tcp: OutSegs\nTcp: 200\nUdp: RetransSegs\n");
  EXPECT_FALSE(disk_traffic(machine.root()));
  EXPECT_FALSE(tcp_segments(machine.root() / "proc/self"));
}

}  // namespace
}  // namespace tessera
