// A slot holds what was written, or is found to be damaged.
#include "checkpoint/snapshot_slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>

#include "base/unique_fd.h"
#include "expect_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr int64_t kNumTensors = 2;

// Every value is different.
float value_of(StateKind kind, int64_t element) {
  return std::bit_cast<float>(static_cast<uint32_t>(element * 4 + static_cast<int64_t>(kind) + 0x3F000000));
}

void fill_values(StateKind kind, int64_t begin, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(kind, begin + static_cast<int64_t>(i));
}

class SnapshotSlotTest : public testing::Test {
 protected:
  void write(SnapshotSlot& slot, const SnapshotId& id, const std::vector<ElementRange>& ranges) {
    slot.prepare(bytes_of(ranges), pool_);
    slot.write(id, 3, ranges, kNumTensors, fill_values, {run_, log_history_}, pool_);
  }
  int64_t bytes_of(const std::vector<ElementRange>& ranges) const {
    SnapshotSizes sizes = {.num_state_tensors = kNumTensors,
                           .num_ranges = std::ssize(ranges),
                           .run_bytes = std::ssize(run_),
                           .log_history_bytes = std::ssize(log_history_)};
    for (const ElementRange& range : ranges) sizes.num_elements += range.end - range.begin;
    return sizes.slot_bytes();
  }

  ThreadPool pool_{2};
  UniqueFd file_ = memory_file("test");
  std::string run_ = "{\"run\": 1}";
  std::string log_history_ = std::string(100'001, 's');
  // Blocks of a region end inside ranges, and ranges inside blocks.
  std::vector<ElementRange> ranges_ = {{32, 33}, {64, 70'000}, {70'016, 70'016}, {100'000, 250'001}};
  SnapshotId id_ = {
      .job = 11, .start_key = 12, .start = 1, .step = 40, .num_nodes = 2, .local_world_size = 3};
};

TEST_F(SnapshotSlotTest, AnotherProcessFindsWhatWasWritten) {
  {
    SnapshotSlot slot(file_.get());
    EXPECT_FALSE(slot.content());
    write(slot, id_, ranges_);
  }
  const SnapshotSlot slot(file_.get());
  const auto content = slot.content();
  ASSERT_TRUE(content);
  EXPECT_EQ(content->id, id_);
  EXPECT_EQ(content->rank, 3);
  EXPECT_TRUE(slot.verify(pool_));
  EXPECT_EQ(slot.texts().run, run_);
  EXPECT_EQ(slot.texts().log_history, log_history_);
  ASSERT_EQ(slot.ranges().size(), ranges_.size());
  for_each_state_kind(kNumTensors, [&](StateKind kind) {
    const std::span<const float> values = slot.values(kind);
    size_t at = 0;
    for (const ElementRange& range : slot.ranges()) {
      for (int64_t i = range.begin; i < range.end; ++i, ++at) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[at]), std::bit_cast<uint32_t>(value_of(kind, i))) << i;
      }
    }
    EXPECT_EQ(at, values.size());
  });
}

TEST_F(SnapshotSlotTest, CopyWithItsHeaderLastIsWhole) {
  SnapshotSlot slot(file_.get());
  write(slot, id_, ranges_);
  const UniqueFd other_file = memory_file("test");
  SnapshotSlot other(other_file.get());
  const int64_t bytes = bytes_of(ranges_);
  other.prepare(bytes, pool_);
  std::ranges::copy(slot.body(bytes), other.body(bytes).begin());
  EXPECT_FALSE(other.content());
  std::ranges::copy(slot.header(), other.header().begin());
  ASSERT_TRUE(other.content());
  EXPECT_TRUE(other.verify(pool_));
  other.body(bytes)[1000] ^= std::byte{1};
  EXPECT_TRUE(other.content());
  EXPECT_FALSE(other.verify(pool_));
}

TEST_F(SnapshotSlotTest, DamageIsFound) {
  const int64_t bytes = bytes_of(ranges_);
  // One flipped bit every 4 KiB or so, and at the ends, everywhere except in gaps between regions.
  SnapshotSlot slot(file_.get());
  write(slot, id_, ranges_);
  int num_found = 0, num_tried = 0;
  for (int64_t at = 0; at < bytes; at += 4093) {
    std::byte value{};
    ASSERT_EQ(pread(file_.get(), &value, 1, at), 1);
    const std::byte flipped = value ^ std::byte{16};
    ASSERT_EQ(pwrite(file_.get(), &flipped, 1, at), 1);
    ++num_tried;
    if (!slot.verify(pool_)) ++num_found;
    ASSERT_EQ(pwrite(file_.get(), &value, 1, at), 1);
    ASSERT_TRUE(slot.verify(pool_)) << at;
  }
  // The header page is mostly empty.
  EXPECT_GE(num_found, num_tried - 1) << "of " << num_tried;
}

TEST_F(SnapshotSlotTest, PreparedIsNotWhole) {
  SnapshotSlot slot(file_.get());
  write(slot, id_, ranges_);
  slot.prepare(bytes_of(ranges_), pool_);
  EXPECT_FALSE(slot.content());
  EXPECT_FALSE(slot.verify(pool_));
  EXPECT_FALSE(SnapshotSlot(file_.get()).content()) << "nor for another process";
}

TEST_F(SnapshotSlotTest, SizeFollowsWhatIsWritten) {
  SnapshotSlot slot(file_.get());
  write(slot, id_, ranges_);
  const int64_t held = slot.held_bytes();
  EXPECT_GE(held, bytes_of(ranges_));
  log_history_ += "a little more";
  write(slot, id_, ranges_);
  EXPECT_EQ(slot.held_bytes(), held);
  write(slot, id_, {{0, 1'000'000}});
  EXPECT_TRUE(slot.verify(pool_));
  EXPECT_GE(slot.held_bytes(), 12'000'000);
  write(slot, id_, ranges_);
  EXPECT_TRUE(slot.verify(pool_));
  EXPECT_LE(slot.held_bytes(), held + (int64_t{2} << 20)) << "except for the rest of a huge page";
  slot.clear();
  EXPECT_EQ(slot.held_bytes(), 0);
  EXPECT_FALSE(slot.content());
  write(slot, id_, {});
  EXPECT_TRUE(slot.verify(pool_)) << "a rank may own nothing";
}

TEST_F(SnapshotSlotTest, DescriptorThatIsNoneIsRefused) {
  const int closed = file_.get();
  file_.reset();
  expect_error(ExitCode::kBadConfig, {"TESSERA_SNAPSHOT_SLOTS"}, [&] { SnapshotSlot slot(closed); });
}

}  // namespace
}  // namespace tessera
