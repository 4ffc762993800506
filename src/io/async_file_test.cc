#include "io/async_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "base/memory.h"
#include "base/unique_fd.h"
#include "disk_shim.h"
#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPage = kDirectAlignment;

std::span<std::byte> pages_of(const PageBuffer& buffer, int64_t first, int64_t count) {
  return {buffer.data() + first * kPage, static_cast<size_t>(count * kPage)};
}

// By number: both ways of making transfers, on a disk and in memory.
class AsyncFileEverywhere : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  AsyncFileSettings settings(int64_t queue_depth = 4, int64_t block_bytes = 2 * kPage) const {
    return {.queue_depth = queue_depth, .block_bytes = block_bytes, .use_io_uring = std::get<0>(GetParam())};
  }
  const TestFolder folder_{std::get<1>(GetParam()) ? memory_folder() : fs::temp_directory_path()};
};

INSTANTIATE_TEST_SUITE_P(, AsyncFileEverywhere, testing::Combine(testing::Bool(), testing::Bool()));

TEST_P(AsyncFileEverywhere, RandomTransfersKeepEveryPage) {
  constexpr int64_t kPages = 64;
  AsyncFile file(folder_ / "rank-0.state", kPages * kPage, settings());
  PageBuffer expected(kPages * kPage), from(kPages * kPage), to(kPages * kPage);
  std::mt19937_64 random(1);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int round = 0; round < 200; ++round) {
    // Reads and writes that do not overlap, all in flight at once.
    std::vector<AsyncFile::Ticket> tickets;
    for (int64_t page = 0; page < kPages;) {
      const int64_t count = std::min(1 + below(9), kPages - page);
      if (below(2) == 0) {
        for (std::byte& value : pages_of(from, page, count)) value = static_cast<std::byte>(random());
        std::ranges::copy(pages_of(from, page, count), pages_of(expected, page, count).data());
        tickets.push_back(file.write(page * kPage, pages_of(from, page, count)));
      } else {
        tickets.push_back(file.read(page * kPage, pages_of(to, page, count)));
      }
      page += count + below(3);
    }
    std::ranges::shuffle(tickets, random);
    for (const AsyncFile::Ticket ticket : tickets) file.wait(ticket);
    if (round % 20 != 19) continue;
    file.read(0, pages_of(to, 0, kPages));
    file.wait_all();
    ASSERT_TRUE(std::ranges::equal(to.as<std::byte>(), expected.as<std::byte>())) << round;
  }
}

// Each page goes to the file and its memory takes another page at once; what is written is read again later.
TEST_P(AsyncFileEverywhere, ReadsIntoMemoryThatIsStillWritten) {
  constexpr int64_t kPages = 96, kSlots = 5, kCount = 3;  // pages at a time: more than a block
  AsyncFile file(folder_ / "scratch", kPages * kPage, settings());
  PageBuffer memory(kSlots * kCount * kPage);
  std::vector<std::optional<AsyncFile::Ticket>> last(kSlots);
  std::vector<int64_t> place(kSlots, -1);
  std::vector<std::byte> expected(kPages / kCount);
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto slot = static_cast<size_t>(round % kSlots);
    const std::span<std::byte> pages = pages_of(memory, static_cast<int64_t>(slot) * kCount, kCount);
    if (place[slot] >= 0) {
      const auto at = static_cast<size_t>(place[slot]);
      file.wait(*last[slot]);
      ASSERT_EQ(std::ranges::count(pages, expected[at]), std::ssize(pages)) << "round " << round;
      expected[at] = static_cast<std::byte>(random());
      std::ranges::fill(pages, expected[at]);
      last[slot] = file.write(place[slot] * kCount * kPage, pages);
    }
    do place[slot] = static_cast<int64_t>(random() % expected.size());
    while (std::ranges::count(place, place[slot]) > 1);
    last[slot] = last[slot] ? file.read_after(*last[slot], place[slot] * kCount * kPage, pages)
                            : file.read(place[slot] * kCount * kPage, pages);
  }
  file.wait_all();
}

TEST_P(AsyncFileEverywhere, StartsAsZerosWithItsSpaceAndWithoutAName) {
  folder_.write("scratch", "of an earlier run");
  const AsyncFile other(folder_ / "scratch", kPage, settings());
  AsyncFile file(folder_ / "scratch", 300 * kPage, settings());
  EXPECT_TRUE(folder_.names().empty());
  PageBuffer memory(300 * kPage);
  std::ranges::fill(memory.as<std::byte>(), std::byte{7});
  file.wait(file.read(0, memory.as<std::byte>()));
  EXPECT_EQ(std::ranges::count(memory.as<std::byte>(), std::byte{0}), 300 * kPage);
  struct stat status = {};
  ASSERT_EQ(::fstat(file.fd(), &status), 0);
  EXPECT_EQ(status.st_size, file.size_bytes());
  EXPECT_GE(status.st_blocks * 512, file.size_bytes());
}

TEST_P(AsyncFileEverywhere, TakesMoreTransfersThanItRemembers) {
  const int64_t count = 2 * AsyncFile::kMaxTransfers + 17;
  AsyncFile file(folder_ / "scratch", 16 * kPage, settings(2));
  PageBuffer memory(count * kPage);
  for (int64_t i = 0; i < count; ++i) {
    EXPECT_EQ(file.read(i % 16 * kPage, pages_of(memory, i, 1)), i);
  }
  file.wait(0);
  file.wait(count - 1);
  file.wait_all();
  const AsyncFileStatistics statistics = file.statistics();
  EXPECT_EQ(statistics.bytes_read, count * kPage);
  EXPECT_EQ(statistics.bytes_written, 0);
  EXPECT_GT(statistics.busy_seconds, 0);
  EXPECT_GT(statistics.waited_seconds, 0);
}

TEST_P(AsyncFileEverywhere, AFileThatEndsEarlyFailsTheReadAndAllThatFollow) {
  AsyncFile file(folder_ / "scratch", 16 * kPage, settings());
  PageBuffer memory(16 * kPage);
  const UniqueFd again(::open(fmt::format("/proc/self/fd/{}", file.fd()).c_str(), O_RDWR));
  ASSERT_EQ(::ftruncate(again.get(), 5 * kPage), 0);
  file.wait(file.read(0, pages_of(memory, 0, 5)));
  const auto all = file.read(0, memory.as<std::byte>());
  const auto is_named = [&](auto call) {
    expect_error(ExitCode::kIoError, {(folder_ / "scratch").native(), "read of", "failed", "ends early"},
                 call);
  };
  is_named([&] { file.wait(all); });
  is_named([&] { file.wait_all(); });
  is_named([&] { file.read(0, pages_of(memory, 0, 1)); });
}

TEST_P(AsyncFileEverywhere, EndsWithTransfersUnderWay) {
  PageBuffer memory(256 * kPage);
  for (int i = 0; i < 20; ++i) {
    AsyncFile file(folder_ / "scratch", 256 * kPage, settings(3));
    file.write(0, memory.as<std::byte>());
  }
}

TEST_P(AsyncFileEverywhere, AFolderThatIsMissingIsNamed) {
  expect_error(ExitCode::kIoError, {(folder_ / "none/scratch").native(), "creation failed"},
               [&] { AsyncFile file(folder_ / "none/scratch", kPage, settings()); });
}

TEST(AsyncFile, SaysThatTheDiskHasTooLittleRoom) {
  const TestFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "no permission to mount a small file system";
  }
  expect_error(ExitCode::kIoError,
               {(folder / "scratch").native(), "needs 2.00 MiB", "1.00 MiB free", "choose another folder"},
               [&] { AsyncFile file(folder / "scratch", 512 * kPage); });
  EXPECT_TRUE(folder.names().empty());
  ::umount(folder.path().c_str());
}

// The shim intercepts library calls, which io_uring does not make.
TEST(AsyncFile, AFailingWriteNamesFileAndOffset) {
  const TestFolder folder;
  AsyncFile file(folder / "scratch", 16 * kPage, {.block_bytes = kPage, .use_io_uring = false});
  PageBuffer memory(16 * kPage);
  const DiskFaults faults(folder.path(), [](const DiskCall& call) {
    return DiskFault{.error = call.name == "pwrite" ? EIO : 0};
  });
  expect_error(ExitCode::kIoError,
               {(folder / "scratch").native(), "write of 4096 bytes at 12288 failed", "Input/output error"},
               [&] { file.wait(file.write(3 * kPage, pages_of(memory, 0, 1))); });
}

TEST(AsyncFile, WhatIsWaitedForGoesFirstUnlessItOverlaps) {
  constexpr int kWrites = 50;
  const TestFolder folder;
  AsyncFile file(folder / "scratch", 64 * kPage, {.queue_depth = 1, .use_io_uring = false});
  PageBuffer memory(64 * kPage);
  std::ranges::fill(memory.as<std::byte>(), std::byte{5});
  std::atomic<int> num_writes = 0;
  const DiskFaults faults(folder.path(), [&](const DiskCall& call) {
    if (call.name == "pwrite") ++num_writes;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return DiskFault();
  });
  for (int i = 0; i < kWrites; ++i) file.write(i * kPage, pages_of(memory, i, 1));
  file.wait(file.read(60 * kPage, pages_of(memory, 60, 1)));
  EXPECT_LT(num_writes, kWrites - 10);
  EXPECT_EQ(pages_of(memory, 60, 1)[0], std::byte{0});
  file.wait(file.read(49 * kPage, pages_of(memory, 61, 1)));
  EXPECT_EQ(num_writes, kWrites);
  EXPECT_EQ(pages_of(memory, 61, 1)[0], std::byte{5}) << "read before it was written";
}

TEST(AsyncFile, GoesOnAfterShortWrites) {
  const TestFolder folder;
  AsyncFile file(folder / "scratch", 16 * kPage, {.block_bytes = 8 * kPage, .use_io_uring = false});
  PageBuffer memory(16 * kPage), again(16 * kPage);
  for (int64_t i = 0; i < 16 * kPage; ++i) memory.data()[i] = static_cast<std::byte>(i / 100);
  {
    const DiskFaults faults(folder.path(), [](const DiskCall&) { return DiskFault{.max_bytes = 2 * kPage}; });
    file.wait(file.write(0, memory.as<std::byte>()));
  }
  file.wait(file.read(0, again.as<std::byte>()));
  EXPECT_TRUE(std::ranges::equal(again.as<std::byte>(), memory.as<std::byte>()));
}

// tmpfs before Linux 6.6 behaves like this: the file exists when direct I/O is refused.
TEST(AsyncFile, WorksWhereDirectOpeningIsRefused) {
  const TestFolder folder;
  std::optional<AsyncFile> file;
  {
    int num_opens = 0;
    const DiskFaults faults(folder.path(), [&](const DiskCall& call) {
      if (call.name != "open" || ++num_opens > 1) return DiskFault();
      std::ofstream(folder / "scratch");
      return DiskFault{.error = EINVAL};
    });
    file.emplace(folder / "scratch", kPage);
  }
  EXPECT_FALSE(file->is_direct());
  EXPECT_TRUE(folder.names().empty());
}

TEST(AsyncFile, WorksWhereDirectTransfersAreRefused) {
  const TestFolder folder;
  std::optional<AsyncFile> file;
  {
    const DiskFaults faults(folder.path(), [](const DiskCall& call) {
      return DiskFault{.error = call.name == "pwrite" ? EINVAL : 0};
    });
    file.emplace(folder / "scratch", 4 * kPage);
  }
  EXPECT_FALSE(file->is_direct());
  PageBuffer memory(kPage);
  memory.data()[5] = std::byte{9};
  file->wait(file->write(kPage, memory.as<std::byte>()));
  memory.data()[5] = std::byte{0};
  file->wait(file->read(kPage, memory.as<std::byte>()));
  EXPECT_EQ(memory.data()[5], std::byte{9});
}

}  // namespace
}  // namespace tessera
