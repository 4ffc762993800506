#include "comm/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

World world_of(int rank, int size, const std::string& run_id) {
  World world;
  world.rank = world.local_rank = rank;
  world.world_size = world.local_world_size = size;
  world.run_id = run_id;
  world.master_port = 29500;
  world.host = "testhost";
  return world;
}

// Unlike any other test's, also of a test program that runs at the same time.
std::string fresh_run_id() {
  static std::atomic<int> count = 0;
  return fmt::format("node_group_test-{}-{}", getpid(), count.fetch_add(1));
}

using RankBody = std::function<void(NodeGroup&, FailureDetector&)>;

// Runs the body on `size` threads, each a rank with a failure detector of its own. Returns what each threw.
std::vector<std::string> run_threads(int size, const RankBody& body,
                                     std::chrono::milliseconds timeout = 20s) {
  const std::string run_id = fresh_run_id();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      FailureDetector failures;
      try {
        NodeGroup group(world_of(rank, size, run_id), {.timeout = timeout}, failures);
        body(group, failures);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class RanksAsThreads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, RanksAsThreads, testing::Range(1, 9));

TEST_P(RanksAsThreads, SeeWhatOthersWroteBeforeTheyPublished) {
  const int size = GetParam();
  const std::vector<std::string> errors = run_threads(size, [&](NodeGroup& group, FailureDetector&) {
    SharedSegment segment = group.allocate("values", size * 8);
    SharedCounters counters = group.make_counters("steps", 2);
    const std::span<int64_t> values = segment.as<int64_t>();
    for (uint64_t step = 1; step <= 200; ++step) {
      values[static_cast<size_t>(group.index())] = static_cast<int64_t>(step) * (group.index() + 1);
      counters.publish(0, step);
      counters.wait_all(0, step, {"written"});
      for (int i = 0; i < size; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<int64_t>(step) * (i + 1)) << "step " << step;
      }
      counters.publish(1, step);
      for (int i = size - 1; i >= 0; --i) counters.wait(i, 1, step, {"read"});
      ASSERT_GE(counters.value((group.index() + 1) % size, 1), step);
    }
    group.barrier({"end"});
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace tessera
