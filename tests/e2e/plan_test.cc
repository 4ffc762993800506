// Runs tessera plan from outside: exit codes, which output goes where, and that its numbers match those of a
// run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::vector<std::string> kLlama = {"plan", "--preset", "llama3-8b", "--nnodes",
                                         "4",    "--memory", "64GiB",     "--max_length",
                                         "1024", "--tflops", "2",         "--per_device_train_batch_size",
                                         "1"};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Plan, FitsOrEndsWith78AndSaysWhatWouldFit) {
  const ProcessResult fits = run_tessera(with(kLlama, {"--zero_stage", "3"}));
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("8,030,261,248 parameters"));
  EXPECT_THAT(fits.out, HasSubstr("per_layer"));

  const ProcessResult none = run_tessera(with(kLlama, {"--zero_stage", "0"}));
  EXPECT_EQ(none.exit_code, 78);
  ASSERT_EQ(none.errors().size(), 1u) << none.err;
  EXPECT_THAT(none.err, HasSubstr("the run does not fit in memory"));
  EXPECT_THAT(none.err, HasSubstr("zero_stage 3"));
  EXPECT_THAT(none.out, HasSubstr("total")) << "the table is shown all the same";

  const ProcessResult nodes = run_tessera({"plan", "--preset", "llama3-8b", "--nnodes", "2", "--memory",
                                           "40GiB", "--max_length", "512", "--per_device_train_batch_size",
                                           "1", "--zero_stage", "3", "--measure_peak", "false"});
  EXPECT_EQ(nodes.exit_code, 78);
  EXPECT_THAT(nodes.err, HasSubstr(" nodes of one rank would do with these settings"));
}

TEST(Plan, JsonIsAllOfStandardOutput) {
  const json whole = json::parse(run_well(with(kLlama, {"--zero_stage", "3", "--json"})).out);
  EXPECT_EQ(whole["num_parameters"], 8030261248);
  EXPECT_EQ(whole["memory"]["available_bytes"], int64_t{64} << 30);
  EXPECT_EQ(whole["memory"]["fits"], true);
  EXPECT_EQ(whole["schedules"].size(), 2u);
  const ProcessResult refused = run_tessera(with(kLlama, {"--zero_stage", "0", "--json"}));
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_EQ(json::parse(refused.out)["memory"]["fits"], false);
}

TEST(Plan, LinesHave80ColumnsAtMost) {
  std::istringstream lines(run_well(with(kLlama, {"--zero_stage", "3", "--nproc_per_node", "2"})).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Plan, TakesTheCommandLineOfTrainAndAModelWithoutWeights) {
  const TinyModel tiny;
  std::vector<std::string> arguments = tiny.train_arguments("out");
  arguments[0] = "plan";
  EXPECT_THAT(run_well(with(arguments, {"--nnodes", "2"})).out, HasSubstr("2 nodes, 1 rank each"));
  const std::string config = tiny.folder / "config.json";
  EXPECT_THAT(run_well({"plan", "--model", config, "--measure_peak", "false"}).out, HasSubstr("memory"));
}

// All items except what is resident before the model, which depends on the current process.
std::map<std::string, json> items_by_name(const json& memory) {
  std::map<std::string, json> items;
  for (const json& item : memory.at("items")) {
    if (item.at("name") != "resident before the model") {
      items[fmt::format("{}: {}", item.at("kind").get<std::string>(), item.at("name").get<std::string>())] =
          item;
    }
  }
  return items;
}

TEST(Plan, HasTheMemoryOfTheRunItselfItemByItem) {
  const TinyModel tiny;
  for (const int ranks : {1, 2}) {
    for (const char* strategy : {"no", "steps"}) {
      SCOPED_TRACE(fmt::format("{} ranks, save_strategy {}", ranks, strategy));
      const std::vector<std::string> launch = {"launch", "--nproc_per_node", std::to_string(ranks)};
      std::vector<std::string> train =
          tiny.train_arguments(fmt::format("out-{}-{}", ranks, strategy),
                               {"--num_threads", "1", "--save_strategy", strategy, "--max_steps", "2"});
      run_well(with(launch, train));
      const json found =
          json::parse(read_file(tiny.folder / fmt::format("out-{}-{}/memory.json", ranks, strategy)));
      train[0] = "plan";
      const json plan = json::parse(
          run_well(with(train, {"--json", "--nproc_per_node", std::to_string(ranks), "--memory", "8GiB"}))
              .out);
      EXPECT_EQ(items_by_name(plan.at("memory")), items_by_name(found.at("predicted")));
      EXPECT_EQ(items_by_name(plan.at("memory")).contains("buffers: checkpoint snapshot"),
                std::string(strategy) == "steps");
    }
  }
}

TEST(Plan, DeepSpeedFileDecidesForTheRanksOfTheJob) {
  const TinyModel tiny;
  const std::string file =
      tiny.folder.write("ds.json", R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
          "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}})");
  const json plan = json::parse(
      run_well({"plan", "--model", tiny.model, "--deepspeed", file, "--nnodes", "3", "--max_length", "64",
                "--merge_micro_batches", "never", "--json", "--measure_peak", "false"})
          .out);
  EXPECT_EQ(plan["zero_stage"], 1);
  EXPECT_EQ(plan["passes_per_step"], 4);
  EXPECT_EQ(plan["tokens_per_step"], 24 * 64);
}

TEST(Plan, WrongUseIsExitCode64) {
  const auto expect_usage = [](const std::vector<std::string>& arguments, const std::string& message) {
    const ProcessResult result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 64) << result.err;
    EXPECT_EQ(result.errors().size(), 1u);
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  expect_usage({"plan"}, "--model DIR (or its config.json) or --preset NAME");
  expect_usage({"plan", "--preset", "15m", "--model", "m"}, "not both");
  expect_usage({"plan", "--preset", "15m", "--memory", "lots"},
               "--memory: expected a size with its unit, such as 64GiB");
  expect_usage({"plan", "--preset", "15m", "--nnodes", "0"}, "--nnodes");
  expect_usage({"plan", "--preset", "15m", "--network_gbps", "0"}, "--network_gbps");
  expect_usage({"plan", "--preset", "15m", "--mfu", "2"}, "--mfu");
  expect_usage({"plan", "--preset", "16m"}, "15m");
}

}  // namespace
}  // namespace tessera
