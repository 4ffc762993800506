#include "platform/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/sanitizers.h"
#include "platform/cpu.h"

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

TEST(ThreadPool, OfAMachineWithoutProcessorsHasOnlyItsSize) {
  ThreadPool pool(100'000, CpuLimits());  // more than a system allows
  EXPECT_EQ(pool.num_threads(), 100'000);
  const auto caller = std::this_thread::get_id();
  int64_t sum = 0;
  pool.parallel_for(10, [&](int64_t index) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    sum += index;
  });
  EXPECT_EQ(sum, 45);
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

TEST(ThreadPool, RunsOnTemporaryThreadsTooWhereItHasFew) {
  for (const int64_t threads : {1, 2, 3, 4, 5}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> num_bodies = 0, num_indices = 0;
    pool.run_on_each(4, [&] {
      // Keeps all bodies running at once, so that loops of temporary threads overlap those of the pool's.
      if (++num_bodies; threads > 1) {
        while (num_bodies < std::max<int64_t>(threads, 4)) std::this_thread::yield();
      }
      for (int round = 0; round < 100; ++round) pool.parallel_for(7, [&](int64_t) { ++num_indices; });
    });
    EXPECT_EQ(num_bodies, std::max<int64_t>(threads, 4)) << threads << " threads";
    EXPECT_EQ(num_indices, 700 * num_bodies) << threads << " threads";
  }
}

TEST(ThreadPool, RethrowsWhatATemporaryThreadThrew) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  EXPECT_THROW(pool.run_on_each(3,
                                [&] {
                                  if (std::this_thread::get_id() != caller) throw std::runtime_error("x");
                                }),
               std::runtime_error);
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

// Loops of every size back to back: a worker that wakes up late meets the next loop, not the last one.
TEST(ThreadPool, MoreThreadsThanProcessorsMakeProgress) {
  const CpuLimits limits = cpu_limits();
  ThreadPool pool(2 * limits.num_threads() + 2);
  EXPECT_FALSE(limits.can_pin(pool.num_threads()));
  EXPECT_FALSE(limits.can_spin(pool.num_threads()));
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

// Affinity of every thread of the pool, by its index.
std::vector<std::vector<int>> affinities(ThreadPool& pool) {
  std::vector<std::vector<int>> bound(static_cast<size_t>(pool.num_threads()));
  std::atomic<int64_t> started = 0;
  pool.parallel_for(pool.num_threads(), [&](int64_t) {
    ++started;
    while (started < pool.num_threads()) std::this_thread::yield();
    bound[static_cast<size_t>(ThreadPool::thread_index())] = affinity();
  });
  return bound;
}

// The first two processors, as if a container allowed no more, with an optional quota.
CpuLimits limits_of_two(std::optional<double> quota = {}) {
  return {{usable_cpus()[0], usable_cpus()[1]}, quota};
}

class Pinning : public testing::Test {
 protected:
  void SetUp() override {
    if (usable_cpus().size() < 2) GTEST_SKIP() << "one processor is usable: nothing to pin to";
  }
  const std::vector<int> all_ = affinity();
  const std::vector<int> first_ = {usable_cpus()[0]};
};

TEST_F(Pinning, GivesEveryThreadAProcessorAndTheCallerBack) {
  const std::vector<int> second = {usable_cpus()[1]};
  {
    ThreadPool pool(2, limits_of_two());
    EXPECT_THAT(affinities(pool), testing::ElementsAre(first_, second));
    {
      ThreadPool another(2, limits_of_two());
      EXPECT_THAT(affinities(another), testing::ElementsAre(first_, second));
    }
    EXPECT_EQ(affinity(), first_) << "the first pool still pins the caller";
    EXPECT_EQ(usable_cpus(), all_);
    const UnpinnedScope scope;
    EXPECT_EQ(affinity(), all_);
  }
  EXPECT_EQ(affinity(), all_);
}

TEST_F(Pinning, GivesTheCallerTheMaskBackThatItHad) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(usable_cpus()[1]), &mask);
  std::thread([&] {
    ASSERT_EQ(sched_setaffinity(0, sizeof(mask), &mask), 0);
    { ThreadPool pool(2, limits_of_two()); }
    EXPECT_EQ(affinity(), std::vector<int>{usable_cpus()[1]});
  }).join();
}

TEST_F(Pinning, NeedsAllProcessorsOfTheMaskAndTheirTime) {
  const std::vector<std::vector<int>> three(3, all_);
  ThreadPool more_than_processors(3, limits_of_two());
  EXPECT_EQ(affinities(more_than_processors), three);
  ThreadPool less_time(2, limits_of_two(1.5));
  EXPECT_EQ(affinities(less_time), std::vector(2, all_));
  CpuLimits limits_of_three = limits_of_two();
  limits_of_three.cpus.push_back(limits_of_three.cpus.back() + 1);
  ThreadPool fewer_than_processors(2, limits_of_three);
  EXPECT_EQ(affinities(fewer_than_processors), std::vector(2, all_));
  ThreadPool one_thread(1, {first_, {}});
  EXPECT_EQ(affinities(one_thread), std::vector(1, all_));
}

TEST_F(Pinning, IsNotInheritedByThePoolsOfAPinnedThread) {
  ThreadPool pool(2, limits_of_two());
  ThreadPool inner(3, limits_of_two());
  EXPECT_THAT(affinities(inner), testing::ElementsAre(first_, all_, all_));
}

TEST_F(Pinning, EndsForWhatAnUnpinnedScopeStarts) {
  ThreadPool pool(2, limits_of_two());
  std::vector<int> of_thread;
  {
    const UnpinnedScope scope;
    std::thread([&] { of_thread = affinity(); }).join();
  }
  EXPECT_EQ(of_thread, all_);
  EXPECT_EQ(affinity(), first_);
}

// Two processors, posing as the hardware threads of one core.
TEST_F(Pinning, TwoThreadsOfACoreAreAskedForOrThereIsOne) {
  CpuLimits one_core = limits_of_two();
  one_core.cores = {one_core.cpus};
  ThreadPool by_default(0, one_core);
  EXPECT_EQ(by_default.num_threads(), 1);
  EXPECT_EQ(by_default.threads_per_core(), 1);
  ThreadPool both(2, one_core);
  EXPECT_EQ(both.threads_per_core(), 2);
  EXPECT_THAT(affinities(both), testing::ElementsAre(first_, std::vector<int>{usable_cpus()[1]}));
}

TEST_F(Pinning, LeavesTheOtherProcessorsToWhatWaits) {
  EXPECT_EQ(spare_cpus(), all_);
  std::vector<int> others = all_;
  others.erase(others.begin());
  {
    const ClaimedCpus first(first_), again(first_);
    EXPECT_EQ(spare_cpus(), others);
    std::vector<int> of_thread;
    {
      const UnpinnedScope scope(spare_cpus());
      std::thread([&] { of_thread = affinity(); }).join();
    }
    EXPECT_EQ(of_thread, others);
    EXPECT_EQ(affinity(), all_);
    const ClaimedCpus rest(others);
    EXPECT_EQ(spare_cpus(), all_) << "none is left";
  }
  EXPECT_EQ(spare_cpus(), all_);
  if (all_.size() == 2) return;
  ThreadPool pool(2, limits_of_two());
  EXPECT_EQ(spare_cpus(), std::vector<int>(all_.begin() + 2, all_.end()));
}

TEST(ThreadPool, ARefusedThreadIsAnErrorAndLeavesNoneBehind) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "sanitizers take more address space than the test allows";
#endif
  // Runs in a child whose address space has no room for that many stacks.
  EXPECT_EXIT(
      {
        rlimit none = {};
        getrlimit(RLIMIT_AS, &none);
        none.rlim_cur = rlim_t{1} << 30;
        setrlimit(RLIMIT_AS, &none);
        try {
          ThreadPool pool(4000);
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::exit(static_cast<int>(error.code()));
        }
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kBadConfig)),
      "^the system allows [0-9]+ of 4000 threads");
}

TEST(ThreadPool, TwoCallersAtATimeAreABug) {
  ThreadPool pool(2);
  pool.parallel_for(2, [&](int64_t i) {
    if (i != 0) return;
    std::thread([&] { EXPECT_THROW(pool.parallel_for(2, [](int64_t) {}), Error); }).join();
  });
  std::atomic<int> count = 0;
  std::thread([&] { pool.parallel_for(2, [&](int64_t) { ++count; }); }).join();
  EXPECT_EQ(count, 2) << "one after another is allowed";
}

TEST(ThreadPool, SignalsInterruptTheCallingThreadAlone) {
  ThreadPool pool(3);
  std::array<bool, 3> is_blocked = {};
  std::latch all_are_here(3);  // every thread has one index
  pool.parallel_for(3, [&](int64_t) {
    all_are_here.arrive_and_wait();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    is_blocked[static_cast<size_t>(ThreadPool::thread_index())] = sigismember(&mask, SIGTERM) == 1;
  });
  EXPECT_THAT(is_blocked, testing::ElementsAre(false, true, true));
}

}  // namespace
}  // namespace tessera
