#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "platform/cgroup.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/peak.h"
#include "platform/thread_pool.h"
#include "platform/topology.h"

namespace tessera {
namespace {

TEST(ThreadPool, RunsEveryIndexOnceForEveryThreadCount) {
  for (const int64_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(round));
      pool.parallel_for(round, [&](int64_t i) { hits[static_cast<size_t>(i)]++; });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPool, NeitherCopiesNorMovesTheBody) {
  struct Body {
    explicit Body(std::atomic<int64_t>* total) : sum(total) {}
    Body(const Body&) = delete;
    void operator()(int64_t index) { *sum += index; }
    std::atomic<int64_t>* sum;
  };
  ThreadPool pool(2);
  std::atomic<int64_t> sum = 0;
  Body body(&sum);
  pool.parallel_for(100, body);
  EXPECT_EQ(sum, 4950);
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(4);
  EXPECT_THROW(pool.parallel_for(100,
                                 [](int64_t i) {
                                   if (i == 42) throw std::runtime_error("x");
                                 }),
               std::runtime_error);
  std::atomic<int64_t> sum = 0;
  pool.parallel_blocks(10, 3, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum.load(), 10);
}

TEST(ThreadPool, SubnormalsAreZeroInsideBodiesAndOnlyThere) {
  const volatile float smallest_normal = std::numeric_limits<float>::min();
  const volatile float half = 0.5f;
  for (const int64_t threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> products(100);
    pool.parallel_for(100, [&](int64_t i) { products[static_cast<size_t>(i)] = smallest_normal * half; });
    for (const float product : products) ASSERT_EQ(product, 0.0f) << threads << " threads";
    EXPECT_GT(smallest_normal * half, 0.0f);
  }
}

TEST(ThreadPool, NestedCallsRunInPlace) {
  ThreadPool pool(3);
  std::atomic<int64_t> count = 0;
  pool.parallel_for(5, [&](int64_t) { pool.parallel_for(7, [&](int64_t) { count++; }); });
  EXPECT_EQ(count.load(), 35);
}

// Loops of every size one after another: a worker that wakes up late meets the next loop, not the last one.
TEST(ThreadPool, MoreThreadsThanProcessorsMakeProgress) {
  const auto num_cpus = static_cast<int64_t>(usable_cpus().size());
  ThreadPool pool(2 * num_cpus + 2);
  EXPECT_FALSE(can_pin(pool.num_threads()));
  EXPECT_FALSE(can_spin(pool.num_threads()));
  std::vector<int64_t> values(100);
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t count = round % 100;
    pool.parallel_for(count, [&](int64_t i) { values[static_cast<size_t>(i)] += round * 100 + i; });
  }
  for (int64_t i = 0; i < 100; ++i) {
    int64_t expected = 0;
    for (int64_t round = 0; round < 3000; ++round) expected += i < round % 100 ? round * 100 + i : 0;
    ASSERT_EQ(values[static_cast<size_t>(i)], expected) << "index " << i;
  }
}

TEST(ThreadPool, EveryExceptionOfALoopButTheFirstIsDropped) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool.parallel_for(50, [](int64_t) { throw std::runtime_error("x"); }), std::runtime_error);
    pool.parallel_for(50, [](int64_t) {});
  }
}

TEST(ThreadPool, BeginsWithConsecutiveSharesOfTheIndices) {
  ThreadPool pool(2);
  std::vector<int64_t> runner(1000, -1);
  std::atomic<int> started = 0;
  pool.parallel_for(1000, [&](int64_t i) {
    // Each share's first index waits for the other's, so that both threads are awake.
    if (i % 500 == 0) {
      ++started;
      while (started < 2) std::this_thread::yield();
    }
    runner[static_cast<size_t>(i)] = ThreadPool::thread_index();
  });
  EXPECT_EQ(runner[0], 0);
  EXPECT_EQ(runner[500], 1);
}

std::vector<int> affinity() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof(mask), &mask);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(ThreadPool, PinsItsThreadsAndGivesTheCallerBack) {
  if (usable_cpus().size() < 2) GTEST_SKIP() << "one processor is usable: nothing to pin to";
  const std::vector<int> before = affinity();
  {
    ThreadPool pool(2);
    ASSERT_TRUE(can_pin(pool.num_threads()));
    ThreadPool second(2);
    std::vector<std::vector<int>> bound(2);
    std::atomic<int> started = 0;
    pool.parallel_for(2, [&](int64_t i) {
      ++started;
      while (started < 2) std::this_thread::yield();
      bound[static_cast<size_t>(i)] = affinity();
    });
    EXPECT_EQ(bound[0], std::vector<int>{usable_cpus()[0]});
    EXPECT_EQ(bound[1], std::vector<int>{usable_cpus()[1]});
    EXPECT_EQ(usable_cpus(), before);
    const UnpinnedScope scope;
    EXPECT_EQ(affinity(), before);
  }
  EXPECT_EQ(affinity(), before);
}

class CgroupTest : public testing::Test {
 protected:
  CgroupTest()
      : root_(std::filesystem::temp_directory_path() / ("tessera_cgroup_" + std::to_string(getpid()))) {}
  ~CgroupTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::filesystem::path root_;
};

TEST_F(CgroupTest, Version2TakesTheTightestLevel) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/pod/memory.max", "1000000\n");
  write("sys/fs/cgroup/pod/memory.current", "900000\n");
  write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\n");
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

// Four threads on fewer processors do not add up to more than the processors can do.
TEST(Peak, MoreThreadsThanProcessorsAreNotFaster) {
  if (ComputePeakMeter::instruction_sets().empty()) GTEST_SKIP() << "no instruction set to measure";
  const std::string weakest = ComputePeakMeter::instruction_sets().back();
  ThreadPool all;
  ThreadPool oversubscribed(4 * all.num_threads());
  ComputePeakMeter fair(all, weakest);
  ComputePeakMeter crowded(oversubscribed, weakest);
  double best_fair = 0;
  double worst_crowded = 1e9;
  for (int round = 0; round < 5; ++round) {
    best_fair = std::max(best_fair, fair.measure(0.02));
    worst_crowded = std::min(worst_crowded, crowded.measure(0.02));
  }
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
  // The kernel counts pages per thread and adds them up now and then: 64 pages each may be missing in either
  // number.
  constexpr int64_t kCountingErrorBytes = int64_t{1} << 20;
  const int64_t resident = resident_bytes();
  EXPECT_LE(resident, peak_resident_bytes() + kCountingErrorBytes);
}

TEST(Cpu, PermissionSaysWhyNot) {
  const AmxPermission& permission = request_amx_permission();
  EXPECT_EQ(permission.granted, permission.reason.empty());
  EXPECT_GE(usable_cpu_count(), 1);
}

}  // namespace
}  // namespace tessera
