#include "comm/node/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/socket/local_socket.h"
#include "resource_counter.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

class RanksAsThreads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, RanksAsThreads, testing::Range(1, 9));

// Every rank writes, publishes, and reads what all others wrote.
void run_steps(NodeGroup& group, uint64_t num_steps) {
  const int size = group.size();
  PageBuffer segment = group.allocate("values", size * 8);
  SharedCounters counters = group.make_counters("steps", 2);
  const std::span<int64_t> values = segment.as<int64_t>();
  for (const int64_t value : values) TESSERA_CHECK(value == 0, "fresh memory holds {}", value);
  group.barrier({"begin"});
  for (uint64_t step = 1; step <= num_steps; ++step) {
    values[static_cast<size_t>(group.index())] = static_cast<int64_t>(step) * (group.index() + 1);
    counters.publish(0, step);
    counters.wait_all(0, step, {"written"});
    for (int i = 0; i < size; ++i) {
      const int64_t value = values[static_cast<size_t>(i)];
      TESSERA_CHECK(value == static_cast<int64_t>(step) * (i + 1), "step {}, rank {}: {}", step, i, value);
    }
    counters.publish(1, step);
    for (int i = size - 1; i >= 0; --i) counters.wait(i, 1, step, {"read"});
    TESSERA_CHECK(counters.value((group.index() + 1) % size, 1) >= step, "step {}", step);
  }
  group.barrier({"end"});
}

TEST_P(RanksAsThreads, SeeWhatOthersWroteBeforeTheyPublished) {
  EXPECT_THAT(run_threads(GetParam(), [](NodeGroup& group, FailureDetector&) { run_steps(group, 200); }),
              Each(""));
}

TEST(RanksAsProcesses, SeeWhatOthersWroteBeforeTheyPublished) {
  for (const int size : {1, 2, 3, 4, 8}) {
    RankProcesses ranks(size, [](NodeGroup& group, FailureDetector&) { run_steps(group, 200); });
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.wait(rank), "") << size << " ranks";
  }
}

TEST(NodeGroup, MemoryAndCountersOutliveTheGroup) {
  run_threads(2, [](NodeGroup& group, FailureDetector&) {
    auto segment = std::make_shared<PageBuffer>(group.allocate("values", 4096));
    segment->as<int>()[static_cast<size_t>(group.index())] = 5;
    PageBuffer other = std::move(*segment);
    EXPECT_EQ(segment->data(), nullptr);
    EXPECT_EQ(other.size_bytes(), 4096);
    group.barrier({"end"});
    EXPECT_EQ(other.as<int>()[0] + other.as<int>()[1], 10);
  });
  FailureDetector failures;
  SharedCounters counters;
  {
    NodeGroup group(world_of(0, 1, ""), {}, failures);
    counters = group.make_counters("alone", 3);
    EXPECT_EQ(group.allocate("nothing", 0).data(), nullptr);
  }
  counters.publish(2, 7);
  counters.wait(0, 2, 7, {"nobody"});
  EXPECT_EQ(counters.value(0, 2), 7u);
}

TEST(NodeGroup, CountsItsWaits) {
  std::atomic<bool> rank1_is_about_to_wait = false;
  const auto errors = run_threads(2, [&](NodeGroup& group, FailureDetector&) {
    SharedCounters counters = group.make_counters("steps", 1);
    const CollectiveCount before = group.collectives().at(0);
    for (int i = 0; i < 3; ++i) group.barrier({"begin"});
    if (group.index() == 1) {
      rank1_is_about_to_wait = true;
    } else {
      while (!rank1_is_about_to_wait) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(100ms);
    }
    counters.publish(0, 1);
    counters.wait_all(0, 1, {"gradients"}, 4096);
    counters.wait(1 - group.index(), 0, 1, {"gradients"}, 100);
    const std::vector<CollectiveCount> counts = group.collectives();
    EXPECT_EQ(counts.at(0).operation, "barrier");
    EXPECT_EQ(counts.at(0).num_calls, before.num_calls + 3);
    EXPECT_EQ(counts.at(1).operation, "wait");
    EXPECT_EQ(counts.at(1).num_calls, 2);
    EXPECT_EQ(counts.at(1).bytes, 4196);
    EXPECT_TRUE(group.index() == 0 || counts.at(1).time_s > 0.02) << counts.at(1).time_s;
    EXPECT_DOUBLE_EQ(group.waited_s(), counts.at(0).time_s + counts.at(1).time_s);
    group.barrier({"end"});
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NodeGroup, SizeThatNoMachineHasIsRefusedOnEveryRank) {
  const std::vector<std::string> errors = run_threads(3, [](NodeGroup& group, FailureDetector&) {
    try {
      group.allocate("weights", int64_t{1} << 62);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      throw;
    }
  });
  EXPECT_THAT(errors, Each(AnyOf(HasSubstr("of shared memory for weights"),
                                 HasSubstr("4611686018427387904 bytes of shared memory"))));
}

// ---- Ranks that do different things ----

TEST(DifferentOperations, AreFoundAtOnceAndNameBothRanks) {
  struct Case {
    RankBody rank0, rank1;
    std::string found0, found1;
  };
  const auto allocate = [](const char* name, int64_t size) {
    return [=](NodeGroup& group, FailureDetector&) { group.allocate(name, size); };
  };
  const auto barrier = [](OpLabel label) {
    return [=](NodeGroup& group, FailureDetector&) { group.barrier(label); };
  };
  const auto counters = [](int64_t num) {
    return [=](NodeGroup& group, FailureDetector&) { group.make_counters("steps", num); };
  };
  const std::vector<Case> cases = {
      {allocate("weights", 64), allocate("weights", 128), "allocate 64 bytes of weights", "128 bytes"},
      {allocate("weights", 64), allocate("moments", 64), "weights", "moments"},
      {barrier({"step", 3}), barrier({"step", 4}), "barrier step of group 3", "barrier step of group 4"},
      {allocate("weights", 64), barrier({"step"}), "allocate 64 bytes of weights", "barrier step"},
      {counters(1), counters(2), "192 bytes of counters steps", "384 bytes of counters steps"},
  };
  for (const Case& c : cases) {
    // A third rank never arrives: the other two notice the mismatch all the same.
    std::atomic<int> num_ended = 0;
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::string> errors = run_threads(3, [&](NodeGroup& group, FailureDetector& failures) {
      if (group.index() == 2) {
        while (num_ended < 2) std::this_thread::sleep_for(1ms);
        return;
      }
      try {
        (group.index() == 0 ? c.rank0 : c.rank1)(group, failures);
      } catch (const Error&) {
        ++num_ended;
        throw;
      }
      ++num_ended;
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(errors[static_cast<size_t>(rank)],
                  AllOf(HasSubstr("rank 0 on host testhost"), HasSubstr("rank 1 on host testhost")));
    }
    // The second to arrive compares; the first may see it gone before it has compared.
    EXPECT_THAT(errors[0] + errors[1], AllOf(HasSubstr(c.found0), HasSubstr(c.found1)));
    EXPECT_EQ(errors[2], "");
  }
}

// ---- Waits that end ----

TEST(NodeWait, TimeoutNamesRankHostLabelAndBytes) {
  const std::vector<std::string> errors = run_threads(
      3,
      [](NodeGroup& group, FailureDetector&) {
        SharedCounters counters = group.make_counters("steps", 1);
        if (group.index() == 0) counters.wait(2, 0, 1, {"gradients", 12}, 4096);
        if (group.index() != 0) std::this_thread::sleep_for(600ms);
      },
      200ms);
  EXPECT_EQ(
      errors[0],
      "rank 0 on host testhost waited 0.2 s for rank 2 on host testhost: gradients of group 12, 4096 bytes");
}

TEST(NodeWait, EndsWithTheFailureThatItsDetectorLearns) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = run_threads(2, [&](NodeGroup& group, FailureDetector& failures) {
    SharedCounters counters = group.make_counters("steps", 1);
    std::thread news([&] {
      std::this_thread::sleep_for(50ms);
      failures.set({.rank = 7, .host = "b", .message = "rank 7 on host b was killed by signal 9"});
    });
    try {
      counters.wait(1 - group.index(), 0, 1, {"gradients"});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kTryAgain);
      news.join();
      throw;
    }
    news.join();
  });
  EXPECT_THAT(errors, Each("rank 7 on host b was killed by signal 9"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
}

TEST(NodeWait, ForARankThatHasLeftEndsAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = run_threads(3, [](NodeGroup& group, FailureDetector&) {
    SharedCounters counters = group.make_counters("steps", 1);
    if (group.index() == 1) {
      counters.publish(0, 1);
      return;
    }
    // A rank's counts from before it left are valid, and its leaving does not disturb waits for another rank.
    counters.wait(1, 0, 1, {"first"});
    std::this_thread::sleep_for(100ms);
    counters.publish(0, 1);
    counters.wait_all(0, 1, {"second"});
    counters.publish(0, 2);
    counters.wait(2 - group.index(), 0, 2, {"third"});
    if (group.index() == 2) counters.wait(1, 0, 2, {"weights"});
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(
      errors[2],
      "rank 1 on host testhost has left in good order while rank 2 on host testhost waited for it: weights");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(NodeWait, NamesTheFirstOfSeveralThatFail) {
  // Rank 2 fails on its own, rank 1 because of it, rank 0 sees both gone.
  const std::vector<std::string> errors = run_threads(3, [](NodeGroup& group, FailureDetector& failures) {
    SharedCounters counters = group.make_counters("steps", 1);
    if (group.index() == 2) {
      failures.set({.rank = 2, .host = "testhost", .message = "disk full"});
      failures.check();
    }
    if (group.index() == 0) std::this_thread::sleep_for(300ms);
    counters.wait(1 - group.index(), 0, 1, {"gradients"});
  });
  EXPECT_EQ(errors[2], "disk full");
  EXPECT_THAT(errors[1], HasSubstr("rank 2 on host testhost ended after an error"));
  EXPECT_THAT(errors[0], HasSubstr("rank 2 on host testhost"));
}

TEST(SharedCounters, PublishingAndWaitingTakeNoMemoryAndNoLock) {
  if (!counts_resources()) GTEST_SKIP() << "sanitizers have their own allocator";
  std::atomic<int64_t> allocations = -1, locks = -1;
  const std::vector<std::string> errors = run_threads(2, [&](NodeGroup& group, FailureDetector&) {
    SharedCounters counters = group.make_counters("steps", 1);
    counters.publish(0, 1);
    counters.wait_all(0, 1, {"warm"});
    const ResourceCounts before = resource_counts();
    for (uint64_t step = 2; step < 50; ++step) {
      // Longer than the spin and a slice: goes through the futex and a check of the peers.
      if (group.index() == 0 && step % 16 == 0) std::this_thread::sleep_for(30ms);
      counters.publish(0, step);
      counters.wait_all(0, step, {"gradients", 1}, 4096);
    }
    const ResourceCounts after = resource_counts();
    counters.publish(0, 50);
    counters.wait_all(0, 50, {"end"});
    if (group.index() == 0) {
      allocations = after.allocations - before.allocations;
      locks = after.locks - before.locks;
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(locks, 0);
}

TEST(SharedCounters, RefusesToGoBackAndUnknownChannels) {
  FailureDetector failures;
  NodeGroup group(world_of(0, 1, ""), {}, failures);
  SharedCounters counters = group.make_counters("steps", 2);
  counters.publish(0, 5);
  EXPECT_THROW(counters.publish(0, 4), Error);
  EXPECT_THROW(counters.publish(2, 1), Error);
  EXPECT_THROW(counters.value(1, 0), Error);
}

// ---- Who may join ----

TEST(NodeOpening, TimeoutNamesTheMissingRankOnEveryRank) {
  RankProcesses ranks(
      3, [](int rank) { return rank != 1; }, [](NodeGroup&, FailureDetector&) {}, 300ms);
  EXPECT_THAT(ranks.wait(0),
              AllOf(HasSubstr("waited 0.3 s"), HasSubstr("rank 1 on host testhost is missing")));
  EXPECT_THAT(ranks.wait(2), HasSubstr("rank 1 on host testhost is missing"));
}

TEST(NodeOpening, SecondProcessWithTheSameRankIsRefusedAndTheOthersGoOn) {
  const std::string run_id = fresh_run_id();
  const auto open = [&](World world) -> std::string {
    FailureDetector failures;
    try {
      NodeGroup group(world, {.timeout = 10s}, failures);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      return error.what();
    }
    return "";
  };
  std::vector<std::string> errors(5);
  std::atomic<bool> intruders_gone = false;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { errors[0] = open(world_of(0, 3, run_id)); });
  threads.emplace_back([&] { errors[1] = open(world_of(1, 3, run_id)); });
  threads.emplace_back([&] {  // the third member arrives last
    while (!intruders_gone) std::this_thread::sleep_for(1ms);
    errors[2] = open(world_of(2, 3, run_id));
  });
  std::this_thread::sleep_for(200ms);
  errors[3] = open(world_of(1, 3, run_id));
  World wrong_size = world_of(2, 3, run_id);
  wrong_size.local_world_size = wrong_size.world_size = 4;
  errors[4] = open(wrong_size);
  intruders_gone = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  EXPECT_EQ(errors[2], "");
  EXPECT_THAT(errors[3], HasSubstr("another process is already rank 1"));
  EXPECT_THAT(errors[4], HasSubstr("world size 3 with 3 ranks per node expected, 4 with 4 found"));
}

TEST(NodeOpening, NameInUseIsAnError) {
  const std::string name = fresh_run_id();
  const UniqueFd first = listen_local(name);
  EXPECT_TRUE(connect_local(name).has_value());
  EXPECT_TRUE(same_user(connect_local(name)->get()));
  EXPECT_THROW(listen_local(name), Error);
  EXPECT_FALSE(connect_local(name + "-nobody").has_value());
}

TEST(LocalSocket, MessageOfAnotherSizeIsNotTaken) {
  const auto [a, b] = connected_pair();
  std::array<std::byte, 8> message{};
  std::array<std::byte, 16> larger{};
  EXPECT_EQ(receive_message(b.get(), message), Transfer::kNotYet);
  EXPECT_EQ(send_message(a.get(), larger), Transfer::kDone);
  EXPECT_EQ(receive_message(b.get(), message), Transfer::kClosed);
  EXPECT_EQ(send_message(a.get(), message), Transfer::kDone);
  EXPECT_EQ(receive_message(b.get(), larger), Transfer::kClosed);
  EXPECT_EQ(send_message(a.get(), message), Transfer::kDone);
  EXPECT_EQ(receive_message(b.get(), message), Transfer::kDone);
}

}  // namespace
}  // namespace tessera
