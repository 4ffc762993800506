// Runs on rows that another process feeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <optional>

#include "expect_error.h"
#include "io/file.h"
#include "support/row_feeder.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Six steps of four rows, in blocks of five.
class SpoolRun : public testing::Test {
 protected:
  SpoolRun() : spec(tiny_.spec) {
    for (const TokenRow& row : random_rows(std::vector<int64_t>(24, 9), tiny_config().vocab_size, 3))
      lines_.push_back(fmt::format(R"({{"input_ids": [{}], "labels": [{}]}})", fmt::join(row.ids, ", "),
                                   fmt::join(row.labels, ", ")));
    spec.data.dataset.clear();
    spec.data.streaming = true;
    spec.data.streaming_buffer_rows = 5;
    spec.data.max_length = 16;
    spec.batch.rows_per_device = 1;
  }

  void use_ranks(const Ranks& ranks) {
    ranks_ = ranks;
    spec.batch.accumulation_steps = 4 / ranks.world_size();
  }
  // In a folder of its own.
  RecordingObserver train_fed(const std::string& name, std::vector<std::string> lines,
                              const RowFeeder::Options& options = {},
                              const std::function<int(int rank)>& stop_signal = {},
                              const std::function<void(const StepMetrics&)>& after_step = {}) {
    spec.data.dataset_spool = tiny_.folder() / (name + ".spool");
    const RowFeeder feeder(spec.data.dataset_spool, std::move(lines), options);
    return train_ranks(spec, ranks_, 1, stop_signal, after_step)[0];
  }
  // On the same rows in a file.
  RecordingObserver train_on_file() {
    RunSettings of_file = spec;
    tiny_.folder().write("rows.jsonl", fmt::format("{}\n", fmt::join(lines_, "\n")));
    of_file.data.dataset = {tiny_.folder() / "rows.jsonl"};
    of_file.data.dataset_spool.clear();
    of_file.data.streaming = false;
    of_file.output_dir = tiny_.folder() / "of_file";
    return train_ranks(of_file, ranks_)[0];
  }

  TinyRun tiny_;
  RunSettings spec;
  Ranks ranks_;
  std::vector<std::string> lines_;
};

TEST_F(SpoolRun, TakesRowsInTheOrderInWhichTheyAreFed) {
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{1, 2}, Ranks{2, 1}}) {
    use_ranks(ranks);
    const std::string name = fmt::format("{}x{}", ranks.num_nodes, ranks.local_world_size);
    spec.output_dir = tiny_.folder() / name;
    EXPECT_EQ(losses_of_steps(train_fed(name, lines_)), losses_of_steps(train_on_file())) << name;
  }
}

TEST_F(SpoolRun, ResumesInTheMiddleOnAnyRanks) {
  spec.saving.strategy = SaveStrategy::kSteps;
  spec.saving.steps = 1;
  spec.saving.total_limit.reset();
  for (const int then : {1, 2}) {
    use_ranks({1, then});
    spec.output_dir = tiny_.folder() / fmt::format("whole{}", then);
    spec.resume = {};
    const std::vector<double> whole = losses_of_steps(train_fed(fmt::format("whole{}", then), lines_));
    ASSERT_EQ(whole.size(), 6u);
    const fs::path checkpoint = spec.output_dir + "/checkpoint-3";
    for (const int now : {1, 2}) {
      ranks_ = {1, now};  // a step keeps its rows
      const std::string name = fmt::format("from{}to{}", then, now);
      spec.output_dir = tiny_.folder() / name;
      spec.resume = parse_resume(checkpoint.string());
      const std::vector<double> rest = losses_of_steps(train_fed(name, lines_, {.rows_per_file = 4}));
      ASSERT_EQ(rest.size(), 3u) << name;
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(rest[i], whole[i + 3], now == then ? 0 : 1e-5 * whole[i + 3])
            << name << ", step " << i + 4;
      }
    }
  }
}

TEST_F(SpoolRun, SigtermEndsTheWaitForRows) {
  spec.saving.strategy = SaveStrategy::kSteps;
  spec.saving.steps = 100;
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{1, 2}, Ranks{2, 1}}) {
    use_ranks(ranks);
    const std::string name = fmt::format("{}x{}", ranks.num_nodes, ranks.local_world_size);
    spec.output_dir = tiny_.folder() / name;
    // Rows of two steps, and no more of them.
    std::atomic<int64_t> num_done = 0, num_asked = 0;
    const RecordingObserver seen = train_fed(
        name, {lines_.begin(), lines_.begin() + 10}, {.ends = false},
        [&](int rank) { return rank == 0 && num_done == 2 && ++num_asked > 5 ? SIGTERM : 0; },
        [&](const StepMetrics&) { ++num_done; });
    EXPECT_EQ(seen.summary.stop_signal, SIGTERM) << name;
    EXPECT_EQ(seen.steps.size(), 2u) << name;
    EXPECT_THAT(seen.checkpoints, ElementsAreArray({fs::path(spec.output_dir) / "checkpoint-2"})) << name;
  }
}

TEST_F(SpoolRun, TooFewRowsAreAnErrorWhenTheyAreUsedUp) {
  for (const int num_ranks : {1, 2}) {
    use_ranks({1, num_ranks});
    int64_t num_done = 0;
    const Error error = error_of([&] {
      train_fed(fmt::format("short{}", num_ranks), {lines_.begin(), lines_.begin() + 18}, {}, {},
                [&](const StepMetrics&) { ++num_done; });
    });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(),
                HasSubstr("the rows that are fed end before row 19 of the 24 that the run takes"));
    EXPECT_EQ(num_done, 4) << num_ranks;
  }
}

}  // namespace
}  // namespace tessera
