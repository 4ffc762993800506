// Weights of layers in a file are those that were written, whatever passes over the groups come between.
#include "shard/weights/streamed_weights.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "base/unique_fd.h"
#include "expect_error.h"
#include "support/model_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class StreamedWeightsTest : public testing::TestWithParam<bool> {
 protected:
  StreamedWeightsTest()
      : layout_(parameter_layout(config())),
        weights_(layout_, DType::kBF16, StateFileSettings{folder_.path()}) {
    for (int64_t group = 0; group < num_groups(); ++group) versions_.push_back(0);
  }

  static ModelConfig config() {
    ModelConfig config = tiny_config();
    config.num_hidden_layers = 7;
    config.tie_word_embeddings = GetParam();
    return config;
  }

  int64_t num_groups() const { return std::ssize(layout_.groups()); }
  int64_t size_of(int64_t group) const {
    const ParameterLayout::Group range = layout_.groups()[static_cast<size_t>(group)];
    return range.end - range.begin;
  }
  // Different for every element, group and version.
  uint16_t value(int64_t group, int64_t i) const {
    return static_cast<uint16_t>(versions_[static_cast<size_t>(group)] * 4099 + group * 257 + i);
  }
  void expect_values(int64_t group, const std::byte* data) const {
    for (int64_t i = 0; i < size_of(group); ++i) {
      uint16_t found = 0;
      std::memcpy(&found, data + 2 * i, 2);
      ASSERT_EQ(found, value(group, i)) << "group " << group << ", element " << i;
    }
  }
  void fill(int64_t group, std::byte* data) const {
    for (int64_t i = 0; i < size_of(group); ++i) {
      const uint16_t next = value(group, i);
      std::memcpy(data + 2 * i, &next, 2);
    }
  }
  void open(int64_t group, bool forward) {
    std::byte* data = weights_.open(group, forward);
    expect_values(group, data);
    opened_ = data;
  }
  void update(int64_t group) {
    ++versions_[static_cast<size_t>(group)];
    fill(group, opened_);
    weights_.updated(group);
  }
  void write_all() {
    for (int64_t group = 0; group < num_groups(); ++group) {
      ++versions_[static_cast<size_t>(group)];
      const auto staged = weights_.memory().bytes() + 2 * weights_.staging_begin();
      fill(group,
           weights_.is_in_file(group) ? staged : weights_.memory().bytes() + 2 * weights_.begin(group));
      if (weights_.is_in_file(group)) {
        weights_.write_staged(group, layout_.groups()[static_cast<size_t>(group)].begin, size_of(group));
      }
    }
    weights_.written();
  }

  TestFolder folder_;
  ParameterLayout layout_;
  StreamedWeights weights_;
  std::vector<int64_t> versions_;  // by group
  std::byte* opened_ = nullptr;
};

TEST_P(StreamedWeightsTest, PassesAndUpdatesSeeTheNewestValues) {
  for (int round = 0; round < 3; ++round) {
    write_all();
    for (int pass = 0; pass < 4; ++pass) {
      for (int64_t group = 0; group < num_groups(); ++group) open(group, /*forward=*/true);
      if (pass == 1) continue;  // an evaluation
      for (int64_t group = num_groups() - 1; group >= 0; --group) {
        open(group, /*forward=*/false);
        if (pass != 2) update(group);
      }
      weights_.finish_updates();
    }
    for (int64_t group = 0; group < num_groups(); ++group) {
      if (!weights_.is_in_file(group)) continue;
      const int64_t half = size_of(group) / 2;
      weights_.stage(group, layout_.groups()[static_cast<size_t>(group)].begin + half, size_of(group) - half);
      uint16_t found = 0;
      std::memcpy(&found, weights_.memory().bytes() + 2 * weights_.staging_begin(), 2);
      EXPECT_EQ(found, value(group, half)) << "group " << group;
    }
  }
}

TEST_P(StreamedWeightsTest, EmbeddingAndHeadAreInMemoryAndPlacesOfNeighboursDiffer) {
  EXPECT_FALSE(weights_.is_in_file(0));
  EXPECT_FALSE(weights_.is_in_file(num_groups() - 1));
  for (int64_t group = 0; group + 1 < num_groups(); ++group) {
    for (int64_t other = group + 1; other < std::min(group + kLayerSlots, num_groups()); ++other) {
      const bool apart = weights_.begin(group) + size_of(group) <= weights_.begin(other) ||
                         weights_.begin(other) + size_of(other) <= weights_.begin(group);
      EXPECT_TRUE(apart) << group << " and " << other;
    }
  }
  EXPECT_LT(weights_.memory().num_elements() - kStagedElements, layout_.num_elements() + 7 * 2048);
}

// Whether a pass reads it or a checkpoint.
TEST_P(StreamedWeightsTest, AFileThatEndsEarlyIsNamedWithThePlace) {
  write_all();
  const fs::path file = folder_ / "rank-0.weights";
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (fs::read_symlink(entry, ignored).native() != file.native() + " (deleted)") continue;
    const UniqueFd again(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::ftruncate(again.get(), 0), 0);
  }
  const int64_t first = layout_.groups()[3].begin;
  expect_error(ExitCode::kIoError, {file.native() + ": read of 20 bytes at ", " failed: the file ends early"},
               [&] { weights_.stage(3, first, 10); });
  expect_error(ExitCode::kIoError, {file.native() + ": read of ", " failed: the file ends early"},
               [&] { weights_.open(3, /*forward=*/true); });
}

INSTANTIATE_TEST_SUITE_P(Heads, StreamedWeightsTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tied" : "Untied"; });

}  // namespace
}  // namespace tessera
