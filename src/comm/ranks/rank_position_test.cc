#include "comm/ranks/rank_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "resource_counter.h"

namespace tessera {
namespace {

UniqueFd shared_memory() { return memory_file("position", RankPosition::size_bytes()); }

TEST(RankPosition, NothingIsThereBeforeTheFirstMark) {
  const UniqueFd fd = shared_memory();
  const RankPosition reader(fd.get());
  EXPECT_FALSE(reader.read().is_there);
  RankPosition writer = RankPosition::of_rank(fd.path());
  writer.mark(Activity::kWork, {.what = "loading"});
  EXPECT_TRUE(reader.read().is_there);
  EXPECT_EQ(reader.read().at(Activity::kNode).what, "");
}

TEST(RankPosition, AnotherMappingReadsWhatWasMarked) {
  const UniqueFd fd = shared_memory();
  const RankPosition reader(fd.get());
  RankPosition writer = RankPosition::of_rank(fd.path());
  writer.set_folder("/runs/a folder");
  writer.mark(Activity::kWork, {.what = "backward", .number = 7, .layer = 3});
  writer.mark(Activity::kNetwork,
              {.what = "gradients", .number = 41, .layer = 2, .bytes = int64_t{1} << 40, .peer = 5});
  writer.count_network(100, 200);
  const PositionReading reading = reader.read();
  EXPECT_EQ(reading.folder, "/runs/a folder");
  const PositionEntry& work = reading.at(Activity::kWork);
  EXPECT_EQ(work.what, "backward");
  EXPECT_EQ(work.number, 7);
  EXPECT_EQ(work.layer, 3);
  EXPECT_EQ(work.peer, -1);
  EXPECT_GE(work.age_s, 0);
  EXPECT_LT(work.age_s, 60);
  const PositionEntry& network = reading.at(Activity::kNetwork);
  EXPECT_EQ(network.bytes, int64_t{1} << 40);
  EXPECT_EQ(network.peer, 5);
  EXPECT_FALSE(network.is_over);
  EXPECT_EQ(reading.sent_bytes, 100);
  EXPECT_EQ(reading.received_bytes, 200);
  writer.mark(Activity::kNetwork, {.what = "gradients", .number = 41, .is_over = true});
  EXPECT_TRUE(reader.read().at(Activity::kNetwork).is_over);
}

TEST(RankPosition, StaysWhenTheRankIsKilled) {
  const UniqueFd fd = shared_memory();
  const pid_t child = fork();
  if (child == 0) {
    RankPosition::of_rank(fd.path()).mark(Activity::kWork, {.what = "forward", .number = 12, .layer = 4});
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  const PositionEntry work = RankPosition(fd.get()).read().at(Activity::kWork);
  EXPECT_EQ(work.what, "forward");
  EXPECT_EQ(work.layer, 4);
}

TEST(RankPosition, LongTextsAreCutAndLongFoldersLeftOut) {
  RankPosition position;
  position.mark(Activity::kNode, {.what = std::string(200, 'x').c_str()});
  EXPECT_EQ(position.read().at(Activity::kNode).what, std::string(47, 'x'));
  position.set_folder(std::string(1023, 'y'));
  position.set_folder(std::string(1024, 'z'));
  EXPECT_EQ(position.read().folder, std::string(1023, 'y'));
}

TEST(RankPosition, AFileThatIsGoneOrTooSmallIsNotUsed) {
  EXPECT_FALSE(RankPosition::of_rank("/nowhere/at/all").read().is_there);
  const UniqueFd small = memory_file("position", 8);
  RankPosition position = RankPosition::of_rank(small.path());
  position.mark(Activity::kWork, {.what = "here"});
  EXPECT_EQ(position.read().at(Activity::kWork).what, "here");
}

// No torn reads.
TEST(RankPosition, ReadersSeeWholeEntries) {
  const UniqueFd fd = shared_memory();
  const RankPosition reader(fd.get());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    RankPosition position(fd.get());
    for (int64_t i = 0; i < 200'000; ++i) {
      position.mark(Activity::kNode,
                    {.what = i % 2 == 0 ? "even" : "odd", .number = i, .layer = i, .bytes = i});
    }
    done = true;
  });
  int64_t num_seen = 0;
  while (!done) {
    const PositionEntry entry = reader.read().at(Activity::kNode);
    if (entry.what.empty()) continue;
    ++num_seen;
    ASSERT_EQ(entry.layer, entry.number);
    ASSERT_EQ(entry.bytes, entry.number);
    ASSERT_EQ(entry.what, entry.number % 2 == 0 ? "even" : "odd");
  }
  writer.join();
  EXPECT_GT(num_seen, 0);
  EXPECT_EQ(reader.read().at(Activity::kNode).number, 199'999);
}

TEST(RankPosition, MarkingTakesNeitherMemoryNorLock) {
  if (!counts_resources()) GTEST_SKIP() << "a sanitizer replaces the counters";
  RankPosition position;
  const ResourceCounts before = resource_counts();
  for (int i = 0; i < 100; ++i) {
    position.mark(Activity::kNode, {.what = "gradients", .number = i});
    position.count_network(i, i);
  }
  const ResourceCounts after = resource_counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.locks, before.locks);
}

}  // namespace
}  // namespace tessera
