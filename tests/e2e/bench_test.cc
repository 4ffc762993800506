// Runs tessera bench from outside: every sub-benchmark on tiny shapes, as a table and as JSON, and invalid
// arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/process.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kShortest = {"--seconds", "0", "--rounds", "1", "--cold_bytes", "100000"};

ProcessResult run_bench(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
  arguments.insert(arguments.begin(), "bench");
  arguments.insert(arguments.end(), kShortest.begin(), kShortest.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_tessera(arguments);
}

struct SubBenchmark {
  std::vector<std::string> arguments;
  size_t num_lines;

  friend void PrintTo(const SubBenchmark& sub, std::ostream* out) {
    for (const std::string& argument : sub.arguments) *out << argument << ' ';
  }
};

class Bench : public testing::TestWithParam<SubBenchmark> {};

TEST_P(Bench, WritesOneJsonObjectPerLine) {
  const ProcessResult result = run_bench(GetParam().arguments, {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const nlohmann::json object = nlohmann::json::parse(line);
    EXPECT_EQ(object["benchmark"], GetParam().arguments[0]);
    EXPECT_TRUE(object.contains("processor"));
  }
  EXPECT_EQ(count, GetParam().num_lines);
}

TEST_P(Bench, WritesATableOf80Columns) {
  const ProcessResult result = run_bench(GetParam().arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

INSTANTIATE_TEST_SUITE_P(
    All, Bench,
    testing::Values(
        SubBenchmark{{"gemm", "--shapes", "3x5x7", "4x33x65"}, 8},
        SubBenchmark{
            {"gemm", "--preset", "15m", "--rows", "16", "--products", "forward", "--dtype", "float32"}, 6},
        SubBenchmark{{"attention", "--preset", "15m", "--max_length", "16"}, 2},
        SubBenchmark{{"elementwise", "--preset", "15m", "--rows", "8", "--vocab_size", "100"}, 10},
        SubBenchmark{{"comm", "--ranks", "2", "3", "--buffer_mb", "1", "--peers", "gloo"}, 2},
        SubBenchmark{{"load", "--size_mb", "1", "--ranks", "1", "2", "--cache", "warm"}, 4},
        SubBenchmark{{"optimizer", "--num_parameters", "1000"}, 4},
        SubBenchmark{{"plan", "--preset", "15m", "--layers", "1", "--vocab_size", "64", "--ranks", "2",
                      "--gradient_checkpointing", "false"},
                     1},
        SubBenchmark{{"tokenizer", "--text_bytes", "3000"}, 4},
        SubBenchmark{{"train-step", "--preset", "15m", "--layers", "1", "--max_length", "8"}, 2},
        SubBenchmark{
            {"train-step", "--preset", "15m", "--layers", "1", "--max_length", "8", "--with_head",
             "--vocab_size", "50", "--per_device_train_batch_size", "2", "--gradient_checkpointing", "true"},
            1}),
    [](const auto& test) {
      const std::string& name = test.param.arguments.front();
      return name.substr(0, name.find('-')) + std::to_string(test.index);
    });

void expect_refused(const std::vector<std::string>& arguments, int exit_code, const std::string& message) {
  SCOPED_TRACE("tessera " + testing::PrintToString(arguments));
  const ProcessResult result = run_tessera(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.err, HasSubstr(message));
  EXPECT_EQ(result.out, "");
}

TEST(BenchUsage, WrongFlagsAreExitCode64) {
  expect_refused({"bench"}, 64, "available: bench gemm, bench attention");
  expect_refused({"bench", "gem"}, 64, "'bench gem' is not a command");
  expect_refused({"bench", "gemm", "--shapes", "5x5"}, 64, "expected TxNxK");
  expect_refused({"bench", "gemm", "--rows", "0"}, 64, "--rows: expected whole numbers from 1");
  expect_refused({"bench", "gemm", "--products", "sideways"}, 64, "expected forward, backward_input");
  expect_refused({"bench", "gemm", "--preset", "7b"}, 64, "unknown preset '7b'");
  expect_refused({"bench", "gemm", "--compare", "mkl"}, 64, "--compare mkl: this machine runs none, ");
  expect_refused({"bench", "gemm", "--seconds", "-1"}, 64, "--seconds: expected a number from 0");
  expect_refused({"bench", "gemm", "--rounds", "0"}, 64, "--rounds: expected a number from 1");
  expect_refused({"bench", "load", "--cache", "hot"}, 64, "--cache: expected warm or cold, found 'hot'");
  expect_refused({"bench", "load", "--ranks", "65"}, 64,
                 "--ranks: expected whole numbers from 1 to 64, found '65'");
  expect_refused({"bench", "load", "--model", "a", "--folder", "b"}, 64, "--model, or --folder");
  expect_refused({"bench", "load", "--model", "/nowhere"}, 66, "/nowhere");
  expect_refused({"bench", "comm", "--peers", "nccl"}, 64,
                 "--peers: expected gloo, mpi or none, found 'nccl'");
  expect_refused({"bench", "comm", "--buffer_mb", "1", "0"}, 64,
                 "--buffer_mb: expected whole numbers from 1");
  expect_refused({"bench", "elementwise", "--operations", "add", "subtract"}, 64,
                 "--operations: expected embedding, rmsnorm");
  expect_refused({"bench", "comm", "--parts", "wire"}, 64, "--parts: expected node or network, found 'wire'");
  expect_refused({"bench", "comm", "--serve", "tcp"}, 64, "--serve: this program has shared");
  expect_refused(
      {"bench", "comm", "--mpirun", "false", "--buffer_mb", "1", "--peers", "none", "--ranks", "65"}, 64,
      "--ranks: expected whole numbers from 1 to 64");
  expect_refused({"bench", "train-step", "--layers", "0"}, 64, "--layers: expected a number from 1");
  expect_refused({"bench", "train-step", "--against", "true"}, 64, "'true' ended without an answer");
}

TEST(BenchUsage, WhatDoesNotFitIsRefusedWithNumbers) {
  expect_refused({"bench", "train-step", "--preset", "llama3-8b", "--layers", "9999"}, 78,
                 "the step does not fit in memory: it takes ");
}

TEST(BenchUsage, ATrainingStepTakesTheMemoryThatWasPredicted) {
  const ProcessResult result = run_bench(
      {"train-step", "--preset", "15m", "--with_head", "--gradient_checkpointing", "false"}, {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json line = nlohmann::json::parse(result.out);
  if (line["peak_memory_bytes"].is_null()) GTEST_SKIP() << "the system cannot reset the peak";
  const double share = line["peak_memory_bytes"].get<double>() / line["predicted_memory_bytes"].get<double>();
  EXPECT_GT(share, 0.9) << result.out;
  EXPECT_LT(share, 1.05) << result.out;
}

TEST(BenchUsage, AMissingTextIsExitCode66) {
  expect_refused({"bench", "tokenizer", "--text", "/nowhere/text.txt"}, 66, "/nowhere/text.txt");
}

TEST(BenchUsage, TextsThatCannotBeMeasuredAreNamed) {
  const TemporaryFolder folder;
  const std::string empty = folder.write("empty.txt", ""), latin1 = folder.write("latin1.txt", "caf\xE9");
  expect_refused({"bench", "tokenizer", "--text", empty}, 65, empty + ": expected text, found an empty file");
  expect_refused({"bench", "tokenizer", "--text", latin1}, 65, latin1 + ": not UTF-8 at byte 3");
}

TEST(BenchUsage, ATokenizerIsNamedWhereItsFolderEndsInASlash) {
  const TinyModel tiny;
  const ProcessResult result = run_bench({"tokenizer", "--tokenizer", tiny.model + "/"}, {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto line = nlohmann::json::parse(result.out.substr(0, result.out.find('\n')));
  EXPECT_EQ(line["tokenizer"], std::filesystem::path(tiny.model).filename().string());
}

TEST(BenchUsage, TesseraIsaLimitsWhatIsMeasured) {
  std::vector<std::string> arguments = {"bench", "gemm", "--shapes", "3x5x7", "--json", "--compare", "none"};
  arguments.insert(arguments.end(), kShortest.begin(), kShortest.end());
  ProcessOptions options;
  options.environment = {"TESSERA_ISA=ref"};
  const ProcessResult result = run_tessera(arguments, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out.substr(0, result.out.find('\n')))["implementation"],
            "ref (ref)");
}

}  // namespace
}  // namespace tessera
