// Several processes need the same cache file at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

enum Outcome { kBuilt = 10, kRead = 11, kRefused = 12, kOtherError = 13 };

class DatasetSharingTest : public testing::Test {
 protected:
  DatasetOptions options_for(const std::string& file) const {
    DatasetOptions options;
    options.sources = {(folder_ / file).string()};
    options.cache_folder = folder_ / "cache";
    options.allow_truncation = true;
    return options;
  }

  int open_once(const DatasetOptions& options) const {
    try {
      ThreadPool pool(1);
      return Dataset::open(options, &tokenizer_, kTestVocabSize, pool).report().cache_hit ? kRead : kBuilt;
    } catch (const Error& error) {
      return error.code() == ExitCode::kBadData ? kRefused : kOtherError;
    }
  }

  // Sorted outcomes of `count` processes that start together.
  std::vector<int> open_in_processes(int count, const DatasetOptions& options) const {
    std::array<int, 2> start = {};
    EXPECT_EQ(pipe(start.data()), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child != 0) {
        children.push_back(child);
        continue;
      }
      close(start[1]);
      char byte = 0;
      if (read(start[0], &byte, 1) != 0) _exit(kOtherError);  // end of file on the pipe is the start signal
      _exit(open_once(options));
    }
    close(start[0]);
    close(start[1]);
    std::vector<int> outcomes;
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      outcomes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    std::sort(outcomes.begin(), outcomes.end());
    return outcomes;
  }

  int num_files(const std::string& extension) const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache"))
      count += entry.path().extension() == extension ? 1 : 0;
    return count;
  }

  TestFolder folder_;
  Tokenizer tokenizer_ = make_byte_tokenizer(folder_ / "tokenizer");
};

TEST_F(DatasetSharingTest, OneProcessMakesTheCacheAndTheOthersReadIt) {
  folder_.write("a.txt", std::string(2'000'000, 'a'));
  const DatasetOptions options = options_for("a.txt");
  EXPECT_THAT(open_in_processes(5, options), ElementsAre(kBuilt, kRead, kRead, kRead, kRead));
  EXPECT_EQ(num_files(".tokens"), 1);
  EXPECT_EQ(num_files(".lock"), 0);
}

TEST_F(DatasetSharingTest, AnErrorOfTheOneThatMakesItHangsNobody) {
  folder_.write("a.txt", std::string(200'000, 'a') + "\xFF");
  const DatasetOptions options = options_for("a.txt");
  EXPECT_THAT(open_in_processes(3, options), ElementsAre(kRefused, kRefused, kRefused));
  EXPECT_EQ(num_files(".tokens"), 0);
  EXPECT_EQ(num_files(".lock"), 0);
}

TEST_F(DatasetSharingTest, AKilledHolderOfTheLockHangsNobody) {
  const std::filesystem::path path = folder_ / "x.lock";
  std::array<int, 2> ready = {};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const LockFile lock(path);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  int num_waits = 0;
  {
    const LockFile lock(path, [&] {
      if (++num_waits == 2) kill(child, SIGKILL);
    });
    EXPECT_GE(num_waits, 2);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);
}

TEST(LockFile, ExcludesOthersUntilItIsGone) {
  const TestFolder folder;
  int inside = 0, most = 0, rounds = 0;  // guarded only by the lock
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        const LockFile lock(folder / "x.lock");
        most = std::max(most, ++inside);
        ++rounds;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(rounds, 20);
}

TEST(LockFile, AWaitMayBeGivenUp) {
  const TestFolder folder;
  const LockFile held(folder / "x.lock");
  EXPECT_THROW(LockFile(folder / "x.lock", [] { throw std::runtime_error("enough"); }), std::runtime_error);
}

}  // namespace
}  // namespace tessera
