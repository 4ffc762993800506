// The output of a benchmark: the keys that docs/performance.md and scripts read, and tables of 80 columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bench/bench_line.h"
#include "bench/kernels/elementwise_bench.h"
#include "bench/kernels/gemm_bench.h"
#include "bench/step/train_step_bench.h"
#include "bench/tokenizer_bench.h"
#include "support/bench_test_support.h"

namespace tessera {
namespace {

using nlohmann::json;

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

BenchLine wide_line() {
  BenchLine line;
  line.benchmark = "gemm";
  line.operation = "embedding_backward";
  line.shape = {{"T", 2048}, {"N", 128256}, {"K", 4096}};
  line.dtype = "BF16";
  line.implementation = "onednn (avx512_bf16)";
  line.unit = "TFLOPS";
  line.peak_name = "amx_bf16";
  line.amount = 2.15;
  line.others.push_back({"ref (ref)", {}, {}});
  fill_statistics({{10, 20, 30}, {20, 40, 60}, {1, 1, 1}}, &line);
  line.verification = {128, 0.25};
  return line;
}

TEST(BenchLine, StatisticsArePairedByRound) {
  const BenchLine line = wide_line();
  EXPECT_EQ(line.rounds, 3);
  EXPECT_EQ(line.speed.median, 20);
  EXPECT_EQ(line.peak.median, 40);
  EXPECT_EQ(line.share.median, 0.5);
  EXPECT_EQ(line.share.q1, 0.5);
  EXPECT_EQ(line.others[0].ratio.median, 20);
}

TEST(BenchLine, JsonHasTheseKeys) {
  const std::string text = json_line(wide_line(), 2);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const json line = json::parse(text);
  EXPECT_EQ(keys_of(line),
            (std::set<std::string>{"benchmark", "operation", "shape", "dtype", "implementation", "unit",
                                   "speed", "peak", "share", "peak_name", "rounds", "amount_per_call",
                                   "compare", "verified", "processor", "threads", "time"}));
  EXPECT_EQ(keys_of(line["share"]), (std::set<std::string>{"q1", "median", "q3"}));
  EXPECT_EQ(keys_of(line["compare"][0]), (std::set<std::string>{"implementation", "speed", "ratio"}));
  EXPECT_EQ(line["shape"], (json{{"T", 2048}, {"N", 128256}, {"K", 4096}}));
  EXPECT_EQ(line["share"]["median"], 0.5);
  EXPECT_EQ(line["verified"], (json{{"elements", 128}, {"worst_error_in_bounds", 0.25}}));
  EXPECT_EQ(line["threads"], 2);
}

TEST(BenchLine, TableFitsIn80Columns) {
  BenchLine line = wide_line();
  expect_narrow(table_header("TFLOPS", "onednn"));
  expect_narrow(table_row(line));
  EXPECT_THAT(table_row(line),
              testing::HasSubstr("2048x128256x4096    20.0    40.0  0.50 0.50-0.50   20.0x"));
  for (const double speed : {0.0123, 1.5, 12.5, 1234.5, 99999.0}) {
    for (const double share : {0.99, 21.26, 106.4}) {
      fill_statistics({{speed}, {speed / share}, {speed * 9.87}}, &line);
      expect_narrow(table_row(line));
    }
  }
}

TEST(TrainStepReport, JsonHasTheseKeysAndTheTableFits) {
  ThreadPool pool(2);
  const TrainStepLine line = run_train_step(tiny_step(), shortest(/*rounds=*/2), /*other=*/nullptr, pool);
  const std::string text = train_step_json(line, 2);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const json object = json::parse(text);
  EXPECT_EQ(keys_of(object), (std::set<std::string>{"benchmark",
                                                    "preset",
                                                    "layers",
                                                    "dtype",
                                                    "max_length",
                                                    "micro_batch",
                                                    "gradient_accumulation_steps",
                                                    "gradient_checkpointing",
                                                    "merge_micro_batches",
                                                    "pass_tokens",
                                                    "with_head",
                                                    "operations",
                                                    "num_parameters",
                                                    "step_tflop",
                                                    "rounds",
                                                    "tokens_per_second",
                                                    "mfu",
                                                    "tokens_per_second_forward_backward",
                                                    "mfu_forward_backward",
                                                    "peak_tflops",
                                                    "peak_name",
                                                    "step_seconds",
                                                    "forward_seconds",
                                                    "head_seconds",
                                                    "backward_seconds",
                                                    "optimizer_seconds",
                                                    "verified",
                                                    "predicted_memory_bytes",
                                                    "peak_memory_bytes",
                                                    "against",
                                                    "operation_shares",
                                                    "processor",
                                                    "threads",
                                                    "time"}));
  EXPECT_EQ(object["layers"], 2);
  EXPECT_EQ(object["rounds"], 2);
  EXPECT_EQ(object["against"], nullptr);
  expect_narrow(train_step_table(line));
}

TEST(TokenizerReport, JsonHasTheseKeysAndTheTableFits) {
  TokenizerLine line;
  line.operation = "encode_first_time";
  line.tokenizer = "a-rather-long-name-of-a-tokenizer";
  line.text = "a-rather-long-name-of-a-text-file.txt";
  line.mib_per_second = {123, 124, 125};
  line.ratio_to_reference = Quartiles{10, 11, 12};
  expect_narrow(tokenizer_table_header());
  expect_narrow(tokenizer_table_row(line));
  const json object = json::parse(tokenizer_json_line(line));
  EXPECT_EQ(keys_of(object), (std::set<std::string>{"benchmark", "operation", "tokenizer", "text",
                                                    "text_bytes", "num_tokens", "rounds", "mib_per_second",
                                                    "ratio_to_reference", "processor", "threads", "time"}));
  EXPECT_EQ(object["ratio_to_reference"]["median"], 11);
  line.ratio_to_reference.reset();
  EXPECT_EQ(json::parse(tokenizer_json_line(line))["ratio_to_reference"], nullptr);
}

}  // namespace
}  // namespace tessera
