#include "io/disk_rate.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(DiskRate, IsMeasuredWithBlocksOfAnySizeAndLeavesNothing) {
  const TestFolder folder;
  for (const int64_t block_bytes : {kDirectAlignment, int64_t{1} << 20, int64_t{1} << 28}) {
    const DiskRate rate = measure_disk_rate(folder.path(), {.block_bytes = block_bytes}, 0.02);
    EXPECT_GT(rate.read_bytes_per_s, 0) << block_bytes;
    EXPECT_GT(rate.written_bytes_per_s, 0) << block_bytes;
    EXPECT_TRUE(folder.names().empty());
  }
}

TEST(DiskRate, AFolderThatIsMissingIsNamed) {
  const TestFolder folder;
  expect_error(ExitCode::kIoError, {(folder / "none").native(), "creation failed"},
               [&] { measure_disk_rate(folder / "none"); });
}

TEST(DiskRate, IsThatOfTheNearestFolderThatExists) {
  const TestFolder folder;
  const auto rate = try_disk_rate(folder / "none" / "yet");
  ASSERT_TRUE(rate);
  EXPECT_GT(rate->gb_per_s(), 0);
  EXPECT_TRUE(folder.names().empty());
}

TEST(DiskRate, SaysHowLongADiskNeedsForBoth) {
  const DiskRate rate = {.read_bytes_per_s = 2e9, .written_bytes_per_s = 1e9};
  EXPECT_DOUBLE_EQ(rate.seconds_for(4'000'000'000, 3'000'000'000), 5);
  // 1.5 s for 1 GB each.
  EXPECT_DOUBLE_EQ(rate.gb_per_s(), 2 / 1.5);
}

}  // namespace
}  // namespace tessera
