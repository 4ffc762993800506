#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "platform/cgroup.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/thread_pool.h"

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

TEST(ThreadPool, NestedCallsRunInPlace) {
  ThreadPool pool(3);
  std::atomic<int64_t> count = 0;
  pool.parallel_for(5, [&](int64_t) { pool.parallel_for(7, [&](int64_t) { count++; }); });
  EXPECT_EQ(count.load(), 35);
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

TEST(MemoryInfo, IsPlausible) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_LE(info.free_for_process_bytes, info.available_bytes);
  EXPECT_LE(resident_bytes(), peak_resident_bytes());
}

TEST(Cpu, PermissionSaysWhyNot) {
  const AmxPermission& permission = request_amx_permission();
  EXPECT_EQ(permission.granted, permission.reason.empty());
  EXPECT_GE(usable_cpu_count(), 1);
}

}  // namespace
}  // namespace tessera
