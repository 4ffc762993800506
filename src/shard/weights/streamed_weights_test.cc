// Weights of layers in a file equal the ones written, whatever passes over the groups come in between.
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
        weights_(layout_, DType::kBF16, StateFileSettings{folder_.path()}, pool_) {
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
  int64_t first_of(int64_t group) const { return layout_.groups()[static_cast<size_t>(group)].begin; }
  bool is_in_file(int64_t group) const { return group > 0 && group + 1 < num_groups(); }
  int64_t place_of(int64_t group) const { return weights_.index(group, first_of(group)); }
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
  void open(int64_t group, WeightUse use) {
    std::byte* data = weights_.open(group, use);
    expect_values(group, data);
    opened_ = data;
  }
  void update(int64_t group) {
    ++versions_[static_cast<size_t>(group)];
    fill(group, opened_);
    weights_.written(group);
  }
  void write_all() {
    for (int64_t group = 0; group < num_groups(); ++group) {
      ++versions_[static_cast<size_t>(group)];
      const int64_t begin = first_of(group);
      weights_.visit(WeightPlace::Access::kWrite, group, begin, size_of(group),
                     [&](int64_t index, int64_t element, int64_t count, auto*) {
                       for (int64_t i = 0; i < count; ++i) {
                         const uint16_t next = value(group, element - begin + i);
                         std::memcpy(weights_.memory().bytes() + 2 * (index + i), &next, 2);
                       }
                     });
    }
    weights_.loaded(/*whole_node=*/false);
  }

  ThreadPool pool_{1};
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
      for (int64_t group = 0; group < num_groups(); ++group) open(group, WeightUse::kForward);
      if (pass == 1) continue;  // an evaluation
      for (int64_t group = num_groups() - 1; group >= 0; --group) {
        open(group, WeightUse::kBackward);
        if (pass != 2) update(group);
      }
      weights_.finish_updates();
    }
    for (int64_t group = 0; group < num_groups(); ++group) {
      const int64_t half = size_of(group) / 2;
      weights_.visit(WeightPlace::Access::kRead, group, first_of(group) + half, size_of(group) - half,
                     [&](int64_t index, int64_t element, int64_t, const FileBytes* in_file) {
                       EXPECT_EQ(in_file != nullptr, is_in_file(group));
                       uint16_t found = 0;
                       std::memcpy(&found, weights_.memory().bytes() + 2 * index, 2);
                       EXPECT_EQ(found, value(group, element - first_of(group))) << "group " << group;
                     });
    }
  }
}

TEST_P(StreamedWeightsTest, PlacesOfNeighboursDiffer) {
  for (int64_t group = 0; group + 1 < num_groups(); ++group) {
    for (int64_t other = group + 1; other < std::min(group + kLayerSlots, num_groups()); ++other) {
      const bool apart = place_of(group) + size_of(group) <= place_of(other) ||
                         place_of(other) + size_of(other) <= place_of(group);
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
  expect_error(ExitCode::kIoError, {file.native() + ": read of 20 bytes at ", " failed: the file ends early"},
               [&] {
                 weights_.visit(WeightPlace::Access::kRead, 3, first_of(3), 10,
                                [](int64_t, int64_t, int64_t, auto*) {});
               });
  expect_error(ExitCode::kIoError, {file.native() + ": read of ", " failed: the file ends early"},
               [&] { weights_.open(3, WeightUse::kForward); });
}

INSTANTIATE_TEST_SUITE_P(Heads, StreamedWeightsTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tied" : "Untied"; });

}  // namespace
}  // namespace tessera
