#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "fake_machine.h"
#include "platform/cgroup.h"
#include "platform/cpu.h"
#include "platform/instruction_trial.h"
#include "platform/memory_info.h"
#include "platform/peak.h"
#include "platform/thread_pool.h"
#include "platform/topology.h"

namespace tessera {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) { machine_.write(path, text); }
  const FakeMachine machine_;
  const std::filesystem::path root_ = machine_.root();
};

TEST_F(CgroupTest, Version2TakesTheTightestLevel) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/pod/memory.max", "1000000\n");
  write("sys/fs/cgroup/pod/memory.current", "900000\n");
  write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 60000\nactive_file 40000\n");
  write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_DOUBLE_EQ(limits.cpus.value(), 1.5);
  EXPECT_EQ(limits.memory_bytes.value(), 1000000);
  EXPECT_EQ(limits.memory_used_bytes.value(), 800000);
}

TEST_F(CgroupTest, Version1) {
  write("proc/self/cgroup", "5:memory:/a\n3:cpu,cpuacct:/a\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n");
  write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "96\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.memory_bytes.value(), 4096);
  EXPECT_EQ(limits.memory_used_bytes.value(), 96);
  EXPECT_FALSE(limits.cpus.has_value());
}

// A container, such as `docker run --cpus 1.5`, or a pod with a limit of 1500m.
TEST_F(CgroupTest, APoolUnderACpuLimitHasItsThreadsAndLeavesThemToTheSystem) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  for (const auto& [quota_us, expected] : {std::pair(50000, 1), std::pair(100000, 1), std::pair(150000, 2)}) {
    write("sys/fs/cgroup/pod/container/cpu.max", fmt::format("{} 100000\n", quota_us));
    CpuLimits limits = cpu_limits(root_);
    EXPECT_EQ(limits.cpus, usable_cpus());
    limits.cpus = {0, 1, 2, 3};  // as on a machine with spare capacity
    ThreadPool pool(0, limits);
    EXPECT_EQ(pool.num_threads(), expected) << quota_us;
    EXPECT_FALSE(limits.can_pin(pool.num_threads())) << quota_us;
    EXPECT_EQ(limits.can_spin(pool.num_threads()), 100000 * expected <= quota_us) << quota_us;
    std::vector<int64_t> values(1000);
    for (int64_t round = 0; round < 20; ++round) {
      pool.parallel_for(1000, [&](int64_t i) { values[static_cast<size_t>(i)] += round * i; });
    }
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], 190 * i) << quota_us;
    EXPECT_THAT(choose_threads(3, nullptr, limits).warning,
                testing::HasSubstr(fmt::format("cgroup CPU limit {:.2f}; {} would be faster",
                                               quota_us / 100000.0, expected)));
  }
}

TEST_F(CgroupTest, MemoryHighCountsAsALimit) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "2000\n");
  write("sys/fs/cgroup/memory.high", "1500\n");
  EXPECT_EQ(cgroup_limits(root_).memory_bytes, 1500);
  write("sys/fs/cgroup/memory.high", "max\n");
  EXPECT_EQ(cgroup_limits(root_).memory_bytes, 2000);
}

// A node of Debian 11, and machines of many clouds: memory and cpu are v1's, v2 has no
// controller.
TEST_F(CgroupTest, HybridTakesEachControllerWhereItIs) {
  write("proc/self/cgroup", "4:memory:/pod/a\n3:cpuset:/\n1:cpu:/pod/a\n0::/pod/a\n");
  write("proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/memory/pod/a/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "8192\n");
  write("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "4096\n");
  write("sys/fs/cgroup/cpu/pod/a/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu/pod/a/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/unified/pod/a/cgroup.procs", "1\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.memory_bytes, 8192);
  EXPECT_EQ(limits.memory_used_bytes, 4096);
  EXPECT_EQ(limits.cpus, 2.5);
  // On others v2 has the memory.
  write("proc/self/cgroup", "1:cpu:/pod/a\n0::/pod/a\n");
  write("sys/fs/cgroup/unified/pod/memory.max", "6000\n");
  EXPECT_EQ(cgroup_limits(root_).memory_bytes, 6000);
  EXPECT_EQ(cgroup_limits(root_).cpus, 2.5);
}

// The host's path in /proc/self/cgroup, while the mount begins at the container's own group.
TEST_F(CgroupTest, ContainerWithoutACgroupNamespace) {
  write("proc/self/cgroup", "5:memory:/kubepods/podab/c1\n3:cpu,cpuacct:/kubepods/podab/c1\n");
  write("proc/self/mountinfo",
        "50 31 0:32 /kubepods/podab/c1 /sys/fs/cgroup/memory ro,nosuid master:16 - cgroup cgroup rw,memory\n"
        "51 31 0:33 /kubepods/podab/c1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 0\nhierarchical_memory_limit 5000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_EQ(limits.memory_bytes, 5000) << "the limit is the pod's, of which the container sees no file";
  EXPECT_EQ(limits.memory_used_bytes, 1000);
  EXPECT_EQ(limits.cpus, 4);
}

// The v2 case; and a process that was moved out of its namespace's root.
TEST_F(CgroupTest, GroupsThatCannotBeSeenAreThoseOfTheMount) {
  write("proc/self/mountinfo", "50 31 0:26 /kubepods.slice/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  write("sys/fs/cgroup/memory.max", "7000\n");
  write("sys/fs/cgroup/inner/memory.max", "6000\n");
  write("other/memory.max", "1\n");
  for (const char* const group : {"/kubepods.slice/c1", "/../../other", "/", "/system.slice"}) {
    write("proc/self/cgroup", fmt::format("0::{}\n", group));
    EXPECT_EQ(cgroup_limits(root_).memory_bytes, 7000) << group;
  }
  write("proc/self/cgroup", "0::/kubepods.slice/c1/inner\n");
  EXPECT_EQ(cgroup_limits(root_).memory_bytes, 6000);
}

TEST_F(CgroupTest, NoLimitsWithoutFiles) {
  const CgroupLimits limits = cgroup_limits(root_);
  EXPECT_FALSE(limits.cpus.has_value());
  EXPECT_FALSE(limits.memory_bytes.has_value());
}

TEST_F(CgroupTest, TopologyReadsNodesAndHugePages) {
  write("sys/devices/system/node/node10/cpulist", "2-3,7\n");
  write("sys/devices/system/node/node10/meminfo", "Node 10 MemTotal:       2048 kB\nNode 10 MemFree: 1 kB\n");
  write("sys/devices/system/node/node0/cpulist", "0-1\n");
  write("sys/devices/system/node/possible", "0,10\n");
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n");
  write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n");
  write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "5\n");
  const std::vector<NumaNode> nodes = numa_nodes(root_);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[1].id, 10);
  EXPECT_EQ(nodes[1].cpus, (std::vector<int>{2, 3, 7}));
  EXPECT_EQ(nodes[1].memory_bytes, 2048 * 1024);
  const HugePages pages = huge_pages(root_);
  EXPECT_EQ(pages.transparent, "madvise");
  ASSERT_EQ(pages.pools.size(), 2u);
  EXPECT_EQ(pages.pools[0].page_bytes, 2048 * 1024);
  EXPECT_EQ(pages.pools[0].free_pages, 5);
  EXPECT_EQ(huge_pages(root_ / "nowhere").transparent, "");
  EXPECT_TRUE(numa_nodes(root_ / "nowhere").empty());
}

TEST(Topology, CpuListsSurviveTheRoundTrip) {
  EXPECT_EQ(format_cpu_list(parse_cpu_list("0-3,8,10-11")), "0-3,8,10-11");
  EXPECT_EQ(parse_cpu_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_EQ(parse_cpu_list("1,x"), (std::vector<int>{1}));
}

// One socket, two, and two with two clusters each (sub-NUMA), as Xeons and as clouds number processors.
const MachineShape kMachines[] = {{1, 4, 2}, {2, 2, 2}, {4, 1, 2}, {1, 4, 2, true}, {2, 2, 2, true}};

TEST(Topology, CoresAreFoundWhateverTheNumbering) {
  for (const MachineShape& shape : kMachines) {
    const FakeMachine machine(shape);
    const std::vector<std::vector<int>> cores = cores_of(shape.cpus(), machine.root());
    ASSERT_EQ(cores.size(), 4u);
    for (int c = 0; c < 4; ++c) EXPECT_EQ(cores[static_cast<size_t>(c)], shape.core(c));
    EXPECT_EQ(online_cpus(machine.root()), shape.cpus());
  }
}

TEST(Topology, AProcessorThatIsNotDescribedIsACoreOfItsOwn) {
  using Cores = std::vector<std::vector<int>>;
  const FakeMachine machine;
  EXPECT_EQ(cores_of({3, 5}, machine.root()), (Cores{{3}, {5}})) << "nothing below /sys";
  machine.set_siblings(0, "0,4", "thread_siblings_list");  // Linux before 5.3
  machine.set_siblings(4, "0,4", "thread_siblings_list");
  machine.set_siblings(1, "1,5");  // processor 5 itself reports nothing
  machine.set_siblings(2, "2");    // its sibling is offline
  machine.set_siblings(3, "17-18");
  machine.set_siblings(7, "nonsense");
  EXPECT_EQ(cores_of({0, 1, 2, 3, 4, 5, 7}, machine.root()), (Cores{{0, 4}, {1, 5}, {2}, {3}, {7}}));
  EXPECT_EQ(cores_of({4, 5}, machine.root()), (Cores{{4}, {5}})) << "half of either core";
  EXPECT_TRUE(online_cpus(machine.root()).empty());
}

TEST(Peak, MeasuresEveryInstructionSetTheMachineHas) {
  ThreadPool pool;
  const std::vector<ComputePeak> peaks = measure_compute_peaks(pool, 0.01);
  const CpuFeatures& cpu = cpu_features();
  const size_t expected =
      static_cast<size_t>(request_amx_permission().granted) + cpu.avx512_bf16 + cpu.avx512 + cpu.avx2;
  EXPECT_EQ(peaks.size(), expected);
  for (const ComputePeak& peak : peaks) EXPECT_GT(peak.tflops, 0.001) << peak.instruction_set;
  const MemoryBandwidth bandwidth = measure_memory_bandwidth(pool, 0.01);
  EXPECT_GT(bandwidth.copy_gb_per_s, 0.1);
  EXPECT_GT(bandwidth.streaming_copy_gb_per_s, 0.1);
  EXPECT_GT(bandwidth.update_gb_per_s, 0.1);
  EXPECT_GT(bandwidth.triad_gb_per_s, 0.1);
}

TEST(Peak, AnUnknownInstructionSetIsRefusedByName) {
  ThreadPool pool(1);
  try {
    ComputePeakMeter meter(pool, "sse9");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("sse9"));
  }
}

// Four threads on fewer processors must not exceed what the processors can do.
TEST(Peak, MoreThreadsThanProcessorsAreNotFaster) {
  if (ComputePeakMeter::instruction_sets().empty()) GTEST_SKIP() << "no instruction set to measure";
  const std::string weakest = ComputePeakMeter::instruction_sets().back();
  ThreadPool all;
  ThreadPool oversubscribed(4 * all.num_threads());
  ComputePeakMeter fair(all, weakest);
  ComputePeakMeter crowded(oversubscribed, weakest);
  double best_fair = 0;
  double worst_crowded = 1e9;
  const auto processor_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  double fair_share = 1;  // fraction of the processors that `fair` got
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const double processor_begin = processor_seconds();
    best_fair = std::max(best_fair, fair.measure(0.02));
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    fair_share = std::min(fair_share, (processor_seconds() - processor_begin) /
                                          (wall.count() * static_cast<double>(all.num_threads())));
    worst_crowded = std::min(worst_crowded, crowded.measure(0.02));
  }
  if (fair_share < 0.9) GTEST_SKIP() << "other programs use the processors: more threads get more of them";
  EXPECT_LT(worst_crowded, 1.2 * best_fair);
}

TEST(Peak, TheBestBandwidthIsThatOfOnePattern) {
  const MemoryBandwidth bandwidth = {3, 5, 4, 9, 1};
  EXPECT_EQ(bandwidth.best_gb_per_s(), 5);
  ThreadPool pool(2);
  BandwidthMeter meter(pool, 1);
  EXPECT_GE(meter.array_bytes(), 2 << 20);
  EXPECT_GT(meter.measure_best(0.006), 0.1);
}

TEST(MemoryInfo, IsPlausible) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_LE(info.free_for_process_bytes, info.available_bytes);
  // The kernel counts pages per thread and only adds them up now and then: up to 64 pages per thread may be
  // missing from either number.
  constexpr int64_t kCountingErrorBytes = int64_t{1} << 20;
  const int64_t resident = resident_bytes();
  EXPECT_LE(resident, peak_resident_bytes() + kCountingErrorBytes);
}

TEST(Cpu, PermissionSaysWhyNot) {
  const AmxPermission& permission = request_amx_permission();
  EXPECT_EQ(permission.granted, permission.reason.empty());
}

TEST(Cpu, TileInformationCountsWhenItHasThePalette) {
  EXPECT_FALSE(TileInformation().has_palette_1());
  EXPECT_TRUE((TileInformation{1, 8, 16, 64}).has_palette_1());
  EXPECT_FALSE((TileInformation{1, 8, 16, 0}).has_palette_1());
  EXPECT_FALSE((TileInformation{0, 8, 16, 64}).has_palette_1());
}

TEST(Cpu, FaultsToInjectAreNamesOutOfAList) {
  EXPECT_THAT(parse_cpu_faults(""), testing::IsEmpty());
  EXPECT_THAT(parse_cpu_faults("avx512_bf16,tile_information"),
              testing::ElementsAre("avx512_bf16", "tile_information"));
  for (const char* value : {"avx", "avx2 ", ",", "avx2;avx512"}) {
    try {
      parse_cpu_faults(value);
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_THAT(error.what(), testing::StartsWith("TESSERA_CPU_FAULTS: expected names from avx2"));
    }
  }
}

bool fault_in_a_trial() {
  volatile int* nowhere = nullptr;
  asm volatile("" : "+r"(nowhere));
  return *nowhere == 0;
}

TEST(InstructionTrial, TellsFaultsAndWrongResultsApartAndLeavesNothingBehind) {
  sigset_t mask, former_mask, left_mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGILL);  // if it were inherited blocked, an illegal instruction would end the process
  pthread_sigmask(SIG_BLOCK, &mask, &former_mask);
  EXPECT_EQ(try_instructions([] { return true; }), "");
  EXPECT_EQ(try_instructions([] { return false; }), "a wrong result");
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(try_instructions(illegal_instruction), "SIGILL (illegal instruction)");
    EXPECT_EQ(try_instructions(fault_in_a_trial), "SIGSEGV (segmentation fault)");
  }
  pthread_sigmask(SIG_SETMASK, &former_mask, &left_mask);
  EXPECT_EQ(sigismember(&left_mask, SIGILL), 1);
  struct sigaction action = {};
  sigaction(SIGILL, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(InstructionTrial, EverySetThatCountsWorks) {
  const CpuFeatures& cpu = cpu_features();
  for (const auto& [counts, works] :
       std::initializer_list<std::pair<bool, bool (*)()>>{{cpu.avx2, avx2_works},
                                                          {cpu.avx512, avx512_works},
                                                          {cpu.avx512_dl, avx512_dl_works},
                                                          {cpu.avx512_bf16, avx512_bf16_works},
                                                          {cpu.amx.granted, amx_bf16_works},
                                                          {cpu.amx_int8, amx_int8_works}}) {
    EXPECT_EQ(counts ? try_instructions(works) : "", "");
  }
  EXPECT_TRUE(cpu.avx512 || !cpu.avx512_bf16);
  EXPECT_TRUE(cpu.avx512_bf16 || !cpu.amx.granted);
  EXPECT_TRUE(cpu.amx.granted || !cpu.amx_int8);
}

TEST(CpuLimits, ThreadsAreTheMaskCutToTheQuota) {
  const std::vector<int> four = {0, 1, 4, 5};
  EXPECT_EQ((CpuLimits{four, {}}.num_threads()), 4);
  EXPECT_EQ((CpuLimits{four, 16.0}.num_threads()), 4);
  EXPECT_EQ((CpuLimits{four, 2.5}.num_threads()), 3);
  EXPECT_EQ((CpuLimits{four, 0.25}.num_threads()), 1);
  EXPECT_EQ((CpuLimits{{7}, {}}.num_threads()), 1);
  EXPECT_EQ((CpuLimits{four, 2.5}.describe()),
            "4 processors allowed by the affinity mask (0-1,4-5), cgroup CPU limit 2.50");
  EXPECT_EQ((CpuLimits{{7}, {}}.describe()),
            "1 processor allowed by the affinity mask (7), no cgroup CPU limit");
}

TEST(CpuLimits, ThreadsArePinnedOnlyWhenTheyTakeTheWholeMask) {
  const CpuLimits free = {{0, 1, 4, 5}, {}};
  EXPECT_TRUE(free.can_pin(4));
  EXPECT_FALSE(free.can_pin(3));
  EXPECT_FALSE(free.can_pin(5));
  EXPECT_TRUE(free.can_spin(4));
  EXPECT_TRUE(free.can_spin(3));
  EXPECT_FALSE(free.can_spin(5));
  const CpuLimits cut = {{0, 1, 4, 5}, 3.5};
  EXPECT_FALSE(cut.can_pin(4));
  EXPECT_FALSE(cut.can_spin(4));
  EXPECT_FALSE(cut.can_pin(3));
  EXPECT_TRUE(cut.can_spin(3));
}

// A machine with hyper-threads, an affinity mask and a container's limit, with the expected result.
struct CoreCase {
  const char* what;
  MachineShape shape;
  std::vector<int> mask;  // empty: all
  std::optional<double> quota;
  int64_t num_threads;
  std::vector<int> pinned;  // empty: not pinned
};

std::vector<int> range(int first, int last, int step = 1) {
  std::vector<int> cpus;
  for (int cpu = first; cpu <= last; cpu += step) cpus.push_back(cpu);
  return cpus;
}

TEST(CpuLimits, OneThreadPerCoreWithinMaskAndQuota) {
  const MachineShape one = kMachines[0], two = kMachines[1], clusters = kMachines[2], cloud = kMachines[3];
  const CoreCase cases[] = {
      {"one socket", one, {}, {}, 4, range(0, 3)},
      {"two sockets", two, {}, {}, 4, range(0, 3)},
      {"sub-NUMA clusters", clusters, {}, {}, 4, range(0, 3)},
      {"siblings side by side", cloud, {}, {}, 4, range(0, 6, 2)},
      {"a container with time for every processor", one, {}, 8, 4, range(0, 3)},
      {"a container with time for the cores", one, {}, 4, 4, range(0, 3)},
      {"a container with less", one, {}, 2.5, 3, {}},
      {"a fraction of a processor", one, {}, 0.5, 1, {}},
      {"the first threads of all cores", one, range(0, 3), {}, 4, range(0, 3)},
      {"the second ones", one, range(4, 7), {}, 4, range(4, 7)},
      {"two cores", one, {1, 2, 5, 6}, {}, 2, {1, 2}},
      {"a core and a half", one, {1, 2, 6}, {}, 2, {1, 2}},
      {"a core and a half, side by side", cloud, {0, 1, 7}, {}, 2, {0, 7}},
      {"two halves", one, {1, 6}, {}, 2, {1, 6}},
      {"one core", cloud, {6, 7}, {}, 1, {}},
  };
  for (const CoreCase& c : cases) {
    SCOPED_TRACE(c.what);
    const FakeMachine machine(c.shape);
    if (c.quota) machine.set_cpu_quota(*c.quota);
    const CpuLimits limits = cpu_limits(machine.root(), c.mask.empty() ? c.shape.cpus() : c.mask);
    EXPECT_EQ(limits.num_threads(), c.num_threads);
    EXPECT_EQ(limits.threads_per_core(c.num_threads), 1);
    EXPECT_EQ(limits.pinned_cpus(c.num_threads), c.pinned);
  }
}

TEST(CpuLimits, TwoThreadsPerCoreAreNeighboursOnIt) {
  const FakeMachine machine(kMachines[1]);
  const CpuLimits limits = cpu_limits(machine.root(), range(0, 7));
  EXPECT_EQ(limits.pinned_cpus(8), (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(limits.threads_per_core(8), 2);
  EXPECT_EQ(limits.pinned_cpus(5), std::vector<int>()) << "neither one nor two per core";
  EXPECT_EQ(limits.threads_per_core(5), 2) << "some cores have two";
  EXPECT_EQ(limits.num_processors(), 8);
  EXPECT_EQ(limits.describe(),
            "8 processors on 4 cores allowed by the affinity mask (0-7), no cgroup CPU limit");
  EXPECT_EQ(choose_threads(8, nullptr, limits).warning, "");
  EXPECT_THAT(choose_threads(0, "9", limits).warning, testing::EndsWith("; 4 would be faster"));
}

TEST(ChooseThreads, FlagThenEnvironmentThenLimits) {
  const CpuLimits limits = {{0, 1, 2, 3}, {}};
  const auto count = [&](int64_t asked, const char* environment) {
    const ThreadChoice choice = choose_threads(asked, environment, limits);
    EXPECT_EQ(choice.warning, "") << asked << " " << environment;
    EXPECT_EQ(choice.is_default, asked == 0 && (environment == nullptr || *environment == '\0'));
    return choice.num_threads;
  };
  EXPECT_EQ(count(3, "2"), 3);
  EXPECT_EQ(count(3, "nonsense that is not asked"), 3);
  EXPECT_EQ(count(0, "2"), 2);
  EXPECT_EQ(count(0, " 3 , 2,1"), 3);
  EXPECT_EQ(count(0, ""), 4);
  EXPECT_EQ(count(0, nullptr), 4);
}

TEST(ChooseThreads, MoreThanAllowedIsAWarningWithTheReason) {
  const CpuLimits limits = {{2, 3}, 1.5};
  const ThreadChoice flag = choose_threads(8, nullptr, limits);
  EXPECT_EQ(flag.num_threads, 8);
  EXPECT_EQ(flag.warning,
            "num_threads 8 is more than this process can run at once: 2 processors allowed by the affinity "
            "mask (2-3), cgroup CPU limit 1.50; 2 would be faster");
  const ThreadChoice environment = choose_threads(0, "3", limits);
  EXPECT_EQ(environment.num_threads, 3);
  EXPECT_THAT(environment.warning, testing::StartsWith("OMP_NUM_THREADS 3 is more than"));
}

TEST(ChooseThreads, AnEnvironmentThatIsNoNumberIsRefused) {
  const CpuLimits limits = {{0, 1}, {}};
  for (const char* text : {"0", "-2", "many", "2x", "1.5", ",", " ", "4097", "99999999999999999999"}) {
    expect_error(ExitCode::kBadConfig, {"OMP_NUM_THREADS", "from 1 to 4096", text},
                 [&] { choose_threads(0, text, limits); });
  }
}

}  // namespace
}  // namespace tessera
