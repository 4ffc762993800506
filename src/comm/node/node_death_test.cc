// Ranks killed while others wait, and random operations that must never hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

// Flags that the processes share with the test.
struct Stage {
  std::array<std::atomic<bool>, 8> waiting;
  std::atomic<bool> go_on;
};

class SharedStage {
 public:
  SharedStage()
      : stage_(static_cast<Stage*>(
            mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedStage() { munmap(stage_, sizeof(Stage)); }
  SharedStage(const SharedStage&) = delete;
  SharedStage& operator=(const SharedStage&) = delete;
  Stage* operator->() const { return stage_; }
  Stage& operator*() const { return *stage_; }

 private:
  Stage* const stage_;
};

enum class Wait { kCounter, kAllCounters, kBarrier, kAllocate };

void PrintTo(Wait wait, std::ostream* out) {
  constexpr const char* kNames[] = {"Counter", "AllCounters", "Barrier", "Allocate"};
  *out << kNames[static_cast<int>(wait)];
}

void wait_for_last(Wait kind, NodeGroup& group, SharedCounters& counters) {
  const int last = group.size() - 1;
  switch (kind) {
    case Wait::kCounter:
      counters.wait(last, 0, 1, {"gradients", 3}, 4096);
      break;
    case Wait::kAllCounters:
      counters.wait_all(0, 1, {"gradients", 3}, 4096);
      break;
    case Wait::kBarrier:
      group.barrier({"step"});
      break;
    case Wait::kAllocate:
      group.allocate("weights", 4096);
      break;
  }
}

class KilledRank : public testing::TestWithParam<std::tuple<Wait, int>> {};
INSTANTIATE_TEST_SUITE_P(WaitsAndVictims, KilledRank,
                         testing::Combine(testing::Values(Wait::kCounter, Wait::kAllCounters, Wait::kBarrier,
                                                          Wait::kAllocate),
                                          testing::Values(0, 1, 3)),
                         [](const auto& test) {
                           return fmt::format("{}Rank{}", testing::PrintToString(std::get<0>(test.param)),
                                              std::get<1>(test.param));
                         });

TEST_P(KilledRank, EndsTheWaitsOfAllOthersWithinASecond) {
  constexpr int kSize = 4, kLast = 3;
  const Wait kind = std::get<0>(GetParam());
  const int victim = std::get<1>(GetParam());
  const SharedStage stage;
  RankProcesses ranks(kSize, [&](NodeGroup& group, FailureDetector&) {
    SharedCounters counters = group.make_counters("steps", 1);
    stage->waiting[static_cast<size_t>(group.index())] = true;
    // The last rank computes, the others wait for it.
    while (group.index() == kLast && !stage->go_on) std::this_thread::sleep_for(1ms);
    wait_for_last(kind, group, counters);
    // Only the last rank, which waits just for itself, may get here.
    counters.wait(0, 0, 2, {"next"});
  });
  for (int rank = 0; rank < kSize; ++rank) {
    while (!stage->waiting[static_cast<size_t>(rank)]) std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(100ms);
  const auto killed_at = std::chrono::steady_clock::now();
  ranks.kill(victim);
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim || rank == kLast) continue;
    EXPECT_THAT(ranks.wait(rank), StartsWith(fmt::format("rank {} on host testhost", victim)));
    EXPECT_LT(std::chrono::steady_clock::now() - killed_at, 1s) << "rank " << rank;
  }
  // A rank that begins to wait afterwards gets the same error.
  stage->go_on = true;
  const auto came_at = std::chrono::steady_clock::now();
  if (victim != kLast) {
    EXPECT_THAT(ranks.wait(kLast), StartsWith(fmt::format("rank {} on host testhost", victim)));
    EXPECT_LT(std::chrono::steady_clock::now() - came_at, 1s);
  }
  EXPECT_EQ(ranks.wait(victim), "signal 9");
}

class KilledWhileOpening : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Victims, KilledWhileOpening, testing::Values(0, 1, 2));

TEST_P(KilledWhileOpening, EndsTheWaitsOfAllOthersWithinASecond) {
  constexpr int kSize = 4;  // the last one never shows up
  const int victim = GetParam();
  RankProcesses ranks(
      kSize, [](int rank) { return rank < 3; }, [](NodeGroup&, FailureDetector&) {}, 20s);
  std::this_thread::sleep_for(300ms);
  const auto killed_at = std::chrono::steady_clock::now();
  ranks.kill(victim);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(ranks.wait(rank), HasSubstr(fmt::format("rank {} on host testhost was lost", victim)));
    EXPECT_LT(std::chrono::steady_clock::now() - killed_at, 1s) << "rank " << rank;
  }
}

// ---- Random operations ----

// The sequence of operations depends on the seed only, the delays also on the rank.
class RandomOperations {
 public:
  RandomOperations(uint64_t seed, NodeGroup& group)
      : group_(group),
        common_(seed),
        own_(seed * 1000 + static_cast<uint64_t>(group.index()) + 1),
        counters_(group.make_counters("random", kChannels)) {}

  void run(int count) {
    for (int i = 0; i < count; ++i) {
      delay();
      switch (common_() % 5) {
        case 0:
          group_.barrier({"random", i});
          break;
        case 1:
          sum_in_fresh_memory(static_cast<int64_t>(1 + common_() % 5000));
          break;
        case 2:
          one_tells_all(static_cast<int>(common_() % static_cast<uint64_t>(group_.size())));
          break;
        case 3:
          pass_around();
          break;
        case 4:
          counters_ = group_.make_counters("random", kChannels);
          for (uint64_t& value : next_) value = 0;
          break;
      }
    }
  }

 private:
  static constexpr int64_t kChannels = 3;

  void delay() {
    const uint64_t kind = own_() % 8;
    if (kind == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 2000));
    if (kind == 1) std::this_thread::yield();
  }

  // Every rank fills a slice, then all ranks read everything.
  void sum_in_fresh_memory(int64_t count) {
    PageBuffer segment = group_.allocate("random", count * 8 * group_.size());
    const std::span<int64_t> values = segment.as<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(group_.index() * count + i)] = group_.index() + i;
    }
    const uint64_t turn = ++next_[0];
    counters_.publish(0, turn);
    delay();
    counters_.wait_all(0, turn, {"slices"}, count * 8);
    int64_t sum = 0;
    for (const int64_t value : values) sum += value;
    const int64_t size = group_.size();
    const int64_t expected = size * count * (count - 1) / 2 + count * size * (size - 1) / 2;
    TESSERA_CHECK(sum == expected, "sum {} instead of {}", sum, expected);
  }

  void one_tells_all(int root) {
    const uint64_t turn = ++next_[1];
    delay();
    counters_.publish(1, turn);  // all counters grow, one is awaited
    counters_.wait(root, 1, turn, {"root"});
  }

  // Rank i continues after rank i - 1.
  void pass_around() {
    const uint64_t turn = ++next_[2];
    if (group_.index() > 0) counters_.wait(group_.index() - 1, 2, turn, {"around"});
    delay();
    counters_.publish(2, turn);
  }

  NodeGroup& group_;
  std::mt19937_64 common_;
  std::mt19937_64 own_;
  SharedCounters counters_;
  std::array<uint64_t, kChannels> next_{};
};

TEST(RandomOperations, NeverWaitForEver) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int size = 1 + static_cast<int>(seed % 8);
    const std::vector<std::string> errors = run_threads(size, [&](NodeGroup& group, FailureDetector&) {
      RandomOperations(seed, group).run(20);
      group.barrier({"end"});
    });
    ASSERT_THAT(errors, Each("")) << "seed " << seed << ", " << size << " ranks";
  }
}

TEST(RandomOperations, NeverWaitForEverAsProcesses) {
  for (uint64_t seed = 1001; seed <= 1030; ++seed) {
    const int size = 2 + static_cast<int>(seed % 7);
    RankProcesses ranks(size, [&](NodeGroup& group, FailureDetector&) {
      RandomOperations(seed, group).run(20);
      group.barrier({"end"});
    });
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_EQ(ranks.wait(rank), "") << "seed " << seed << ", " << size << " ranks, rank " << rank;
    }
  }
}

}  // namespace
}  // namespace tessera
