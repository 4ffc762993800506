#include "cli/terminal/closing_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

TrainSummary long_run() {
  TrainSummary summary;
  summary.num_steps = 12'000;
  summary.train_loss = 2.3456;
  summary.num_tokens = 98'304'000;
  summary.tokens_per_second = 27'345.6;
  summary.tflops = 1.234;
  summary.mfu = 0.4321;
  summary.peak = {2.856, 41};
  summary.peak_resident_bytes = int64_t{3} << 30;
  summary.best_evaluation = {11'000, 2.2345};
  summary.hint =
      "evaluations take 23 % of the time: a larger eval_steps or a smaller eval_dataset than this one";
  summary.folder = "out/model";
  summary.times = {.total_s = 4000,
                   .startup_s = 4.2,
                   .steps_s = 3000,
                   .steps = {.rows_s = 1,
                             .products_s = 2000,
                             .attention_s = 300,
                             .elementwise_s = 400,
                             .wait_s = 0,
                             .optimizer_s = 200,
                             .other_s = 99},
                   .evaluation_s = 930,
                   .checkpoint_s = 12,
                   .model_s = 3.3,
                   .num_steps = 12'000,
                   .num_evaluations = 12,
                   .num_checkpoints = 24};
  return summary;
}

TEST(ClosingTable, HasTheTimeByPhaseAndTheResult) {
  EXPECT_EQ(closing_table(long_run(), {.memory_limit_bytes = int64_t{64} << 30}, 80),
            "time                               1:06:40   100 %\n"
            "  start-up                           4.2 s     0 %\n"
            "  steps (12,000)                     50:00    75 %\n"
            "    products                         33:20    50 %\n"
            "    attention                        05:00     8 %\n"
            "    element-wise operations          06:40    10 %\n"
            "    optimizer                        03:20     5 %\n"
            "    choosing rows                    1.0 s     0 %\n"
            "    other                            01:39     2 %\n"
            "  evaluations (12)                   15:30    23 %\n"
            "  checkpoints (24)                   00:12     0 %\n"
            "  writing the model                  3.3 s     0 %\n"
            "  other                              00:51     1 %\n"
            "tokens   98,304,000 in 12,000 steps, 27,346 tokens/s\n"
            "speed    1.23 TFLOPS, MFU 0.432 of the best peak seen, 2.86 TFLOPS (41\n"
            "         measurements)\n"
            "memory   peak 3.00 GiB of 64.0 GiB\n"
            "loss     mean 2.3456; best evaluation 2.2345, after step 11,000\n"
            "faster   evaluations take 23 % of the time: a larger eval_steps or a smaller\n"
            "         eval_dataset than this one\n"
            "model    out/model\n");
}

TEST(ClosingTable, FitsItsWidth) {
  TrainSummary summary = long_run();
  summary.network = NetworkUse{.sent_bytes = int64_t{5} << 30, .time_s = 0.123456, .hidden = 0.5};
  for (const int64_t width : {60, 80, 120}) {
    std::istringstream lines(
        closing_table(summary, {.num_ranks = 8, .num_nodes = 2, .node_bytes = int64_t{9} << 30}, width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(std::ssize(line), width) << line;
  }
}

TEST(ClosingTable, ComparesTheDiskWithItsRate) {
  TrainSummary summary = long_run();
  summary.times.steps.disk_s = 600;
  summary.disk = {.step = {.read_bytes = int64_t{1} << 28,
                           .written_bytes = int64_t{1} << 27,
                           .state_wait_s = 0.04,
                           .weights_wait_s = 0.01},
                  .rate = DiskRate{.read_bytes_per_s = 2e9, .written_bytes_per_s = 1e9}};
  const std::string text = closing_table(summary, {.num_ranks = 4, .num_nodes = 2}, 200);
  EXPECT_THAT(text, HasSubstr("    waiting for the disk             10:00    15 %\n"));
  EXPECT_THAT(
      text, HasSubstr("disk     512.0 MiB read and 256.0 MiB written per step, 0.537 s at the 2.00 and "
                      "1.00 GB/s measured at the\n         start; a step takes 0.25 s, 0.05 s of it waiting "
                      "for the disk\n"));
}

TEST(ClosingTable, NamesOnlyWhatThereWas) {
  TrainSummary summary;
  summary.num_steps = 1;
  summary.stop_signal = 15;
  std::string text = closing_table(summary, {}, 80);
  EXPECT_THAT(text, Not(HasSubstr("evaluation")));
  EXPECT_THAT(text, Not(HasSubstr("MFU")));
  EXPECT_THAT(text, Not(HasSubstr("faster")));
  EXPECT_THAT(text, HasSubstr("model    none: stopped by a signal; no checkpoint was written\n"));
  summary.folder = "out/checkpoint-1";
  EXPECT_THAT(closing_table(summary, {}, 80), HasSubstr("model    out/checkpoint-1, stopped by a signal\n"));
}

}  // namespace
}  // namespace tessera
