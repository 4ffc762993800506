// Ranks as processes: what they inherit, how they end, and which end caused the others.
#include "launch/ranks/rank_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <sstream>

#include "comm/ranks/world.h"
#include "launch/ranks/snapshot_memory.h"

namespace tessera {
namespace {

using testing::IsEmpty;

// Every rank has its own files, the same in every start; empty until a rank writes to them.
TEST(SnapshotMemory, IsFilesOfTheAgentByRank) {
  const SnapshotMemory memory(2);
  std::set<int> all;
  for (const int rank : {0, 1}) {
    const std::vector<int> slots = memory.of_rank(rank);
    ASSERT_EQ(std::ssize(slots), kNumSnapshotSlots);
    EXPECT_EQ(memory.of_rank(rank), slots);
    all.insert(slots.begin(), slots.end());
  }
  EXPECT_EQ(std::ssize(all), 2 * kNumSnapshotSlots);
  for (const int fd : all) {
    struct stat file {};
    ASSERT_EQ(fstat(fd, &file), 0);
    EXPECT_EQ(file.st_blocks, 0);
  }
  EXPECT_THAT(SnapshotMemory(0).of_rank(0), IsEmpty());
}

TEST(RankProcess, HasItsOwnSnapshotMemoryAndNoOtherFile) {
  const SnapshotMemory memory(2);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  RankProcessOptions options;
  // One by one: the descriptor with which a shell lists a folder may have any free number.
  options.program = {
      "/bin/sh", "sh", "-c",
      "n=3; while [ $n -lt 256 ]; do if [ -e /proc/self/fd/$n ]; then echo $n; fi; n=$((n+1)); done"};
  options.out = ends[1];
  options.inherited = memory.of_rank(1);
  const pid_t pid = start_rank(options);
  close(ends[1]);
  std::string text(4096, ' ');
  ssize_t size = 0;
  for (ssize_t count = 1; count > 0; size += count) {
    count = read(ends[0], text.data() + size, text.size() - static_cast<size_t>(size));
    ASSERT_GE(count, 0);
  }
  close(ends[0]);
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  std::istringstream lines(text.substr(0, static_cast<size_t>(size)));
  std::set<int> found;
  for (int fd = 0; lines >> fd;) found.insert(fd);
  for (const int fd : options.inherited) EXPECT_TRUE(found.contains(fd)) << fd;
  for (const int fd : memory.of_rank(0)) EXPECT_FALSE(found.contains(fd)) << fd;
}

RankEnd end_of(int rank, int exit_code, const std::string& message = "", bool caused_by_peer = false) {
  RankEnd end;
  end.rank = rank;
  end.host = "b";
  end.exit_code = exit_code;
  if (!message.empty()) {
    end.report = ErrorReport();
    end.report->message = message;
    end.report->caused_by_peer = caused_by_peer;
  }
  return end;
}

TEST(Culprit, IsTheFirstThatBlamesNobodyElse) {
  RankEnd killed = end_of(2, 0);
  killed.signal = 9;
  EXPECT_EQ(killed.describe(), "rank 2 on host b was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(killed.final_code(), 75);
  RankEnd crashed = end_of(2, 0, "killed by signal 11 (SIGSEGV), in f");
  crashed.signal = 11;
  EXPECT_EQ(crashed.describe(), "rank 2 on host b was killed by signal 11 (SIGSEGV)")
      << "the report is of a different end";
  crashed.report->code = 128 + 11;
  EXPECT_EQ(crashed.describe(), "rank 2 on host b was killed by signal 11 (SIGSEGV), in f");
  const RankEnd victim = end_of(0, 75, "rank 2 on host b is gone", true);
  EXPECT_EQ(find_culprit({victim, killed})->rank, 2);
  EXPECT_EQ(find_culprit({victim})->describe(), "rank 2 on host b is gone")
      << "the culprit is on another node";
  EXPECT_EQ(find_culprit({end_of(1, 0), end_of(3, 7)})->describe(),
            "rank 3 on host b ended with exit code 7");
  EXPECT_EQ(find_culprit({end_of(1, 0)}), nullptr);

  RankEnd told = end_of(0, 0);
  told.signal = 15;
  told.was_told_to_end = true;
  EXPECT_EQ(find_culprit({told, victim})->describe(), victim.describe());
  EXPECT_EQ(find_culprit({told, victim, end_of(1, 65, "bad file")})->describe(), "bad file");
  EXPECT_EQ(find_culprit({told, victim, end_of(1, 74, "disk full")})->describe(),
            "rank 1 on host b: disk full");
}

// No rank is to blame; with several nodes, the mistake may be on one of them.
TEST(Culprit, OfTheUsersMistakeIsNobody) {
  for (const int code : {64, 65, 66, 78}) {
    EXPECT_EQ(end_of(3, code, "no such file").describe(), "no such file");
    EXPECT_EQ(end_of(3, code, "no such file").describe_to_others(), "host b: no such file");
  }
  for (const int code : {70, 74, 79}) {
    EXPECT_EQ(end_of(3, code, "wrong").describe(), "rank 3 on host b: wrong");
    EXPECT_EQ(end_of(3, code, "wrong").describe_to_others(), "rank 3 on host b: wrong");
  }
  EXPECT_EQ(end_of(3, 66).describe(), "rank 3 on host b ended with exit code 66") << "it left no report";
}

TEST(Culprit, OfRanksWithTheSameErrorIsTheLowest) {
  RankEnd second = end_of(0, 66, "no model");
  second.was_told_to_end = true;
  EXPECT_EQ(find_culprit({end_of(1, 66, "no model"), second})->rank, 0);
  EXPECT_EQ(find_culprit({end_of(1, 66, "no model"), end_of(0, 66, "no data")})->rank, 1);
}

TEST(Restart, HelpsAfterSignalsAndPeersOnly) {
  for (const int code : {74, 75, 1, 137}) EXPECT_TRUE(restart_may_help(code)) << code;
  for (const int code : {0, 64, 65, 66, 70, 78, 79}) EXPECT_FALSE(restart_may_help(code)) << code;
}

}  // namespace
}  // namespace tessera
