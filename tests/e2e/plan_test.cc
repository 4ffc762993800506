// Runs tessera plan from outside: exit codes, which output goes where, and that its numbers match those of a
// run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/stopwatch.h"
#include "e2e/tiny_model.h"
#include "test_folder.h"

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

TEST(Plan, SimulatesClustersOfSeveralSizes) {
  const std::vector<std::string> run = {"plan",         "--preset",   "llama3-8b",    "--machine",
                                        "r7i.16xlarge", "--simulate", "--max_length", "1024",
                                        "--zero_stage", "2"};
  const json whole =
      json::parse(run_well(with(run, {"--nodes", "4", "1024", "--nodes_per_rack", "16", "--oversubscription",
                                      "4", "--stragglers", "3:1.5", "--mtbf_hours", "1000", "--json"}))
                      .out);
  ASSERT_EQ(whole["clusters"].size(), 2u);
  EXPECT_EQ(whole["clusters"][1]["racks"], 64);
  EXPECT_EQ(whole["clusters"][1]["bottleneck"], "uplink");
  EXPECT_GT(whole["clusters"][0]["useful"]["useful_share"], 0.9);

  const auto expect_refused = [&](const std::vector<std::string>& more, const std::string& message) {
    const ProcessResult refused = run_tessera(with(run, more));
    EXPECT_EQ(refused.exit_code, 64) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_EQ(refused.errors().size(), 1u) << refused.err;
  };
  expect_refused({"--nodes", "0"}, "--nodes: expected numbers from 1 to 4096, found '0'");
  expect_refused({"--nodes", "4x"}, "found '4x'");
  expect_refused({"--stragglers", "1.5"}, "--stragglers: expected NODE:FACTOR such as 3:1.5, found '1.5'");
  expect_refused({"--stragglers", "1:2", "1:3"}, "node 1 is given twice");
  expect_refused({"--oversubscription", "0"},
                 "--oversubscription: expected a number from 1 to 1000, found 0");
  expect_refused({"--stragglers", "8:1.5", "--nodes", "4", "8"}, "no cluster has a node 8");
  expect_refused({"--oversubscription", "4"}, "--nodes_per_rack");
  expect_refused({"--nodes", "4", "--nnodes", "8"}, "give one of the two");
  expect_refused({"--restart_s", "5"}, "--mtbf_hours");
  expect_refused({"--instances", "c7i.*"}, "--instances is for a search");
  const ProcessResult small = run_tessera({"plan", "--preset", "llama3-8b", "--simulate", "--machine",
                                           "r7i.2xlarge", "--zero_stage", "0", "--max_length", "1024"});
  EXPECT_EQ(small.exit_code, 78);
  EXPECT_THAT(small.err, HasSubstr("does not fit in memory"));
  const ProcessResult alone = run_tessera({"plan", "--preset", "llama3-8b", "--nodes", "4"});
  EXPECT_EQ(alone.exit_code, 64);
  EXPECT_THAT(alone.err, HasSubstr("--nodes is for a simulation: add --simulate"));
}

TEST(Plan, JsonIsAllOfStandardOutput) {
  const json whole = json::parse(run_well(with(kLlama, {"--zero_stage", "3", "--json"})).out);
  EXPECT_EQ(whole["num_parameters"], 8030261248);
  EXPECT_EQ(whole["memory"]["available_bytes"], int64_t{64} << 30);
  EXPECT_EQ(whole["memory"]["fits"], true);
  EXPECT_EQ(whole["schedules"].size(), 3u);  // per_step, per_layer, sync_every
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

const std::vector<std::string> kSearch = {"plan",        "--preset",   "60m", "--max_length",
                                          "256",         "--tokens",   "1e8", "--per_device_train_batch_size",
                                          "8",           "--top",      "5",   "--instances",
                                          "c7i.2xlarge", "c8i.*xlarge"};

TEST(Plan, WithoutAMachineSearchesTheCatalogue) {
  const ProcessResult found = run_well(kSearch);
  EXPECT_THAT(found.out, HasSubstr("100,000,000 tokens in 48,829 steps"));
  EXPECT_THAT(found.out, HasSubstr("prices   on demand"));
  EXPECT_THAT(found.out, HasSubstr("\nbest     "));
  EXPECT_THAT(found.out, HasSubstr("element-wise"));
  EXPECT_THAT(found.out, HasSubstr("exp_avg")) << "the memory by kind";
  EXPECT_THAT(found.out, HasSubstr("--dataset FILE --output_dir DIR"));
  EXPECT_EQ(found.err, "");
  std::istringstream lines(found.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(run_well({"plan", "--preset", "15m"}).out, HasSubstr("1,000,000,000 tokens"));
}

// What a file states of batches is right for one number of ranks.
TEST(Plan, TheSearchKeepsToTheRanksOfADeepSpeedFile) {
  const TestFolder folder;
  const std::string file =
      folder.write("ds.json", R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
          "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}})");
  const std::vector<std::string> search = {
      "plan",        "--preset",    "60m",          "--deepspeed", file,     "--tokens", "1e8",
      "--instances", "c8i.2xlarge", "--max_length", "256",         "--sort", "time"};
  const ProcessResult found = run_well(search);
  EXPECT_THAT(found.out, HasSubstr("step     32 rows"));
  EXPECT_THAT(found.out, HasSubstr("--nnodes 4 "));
  EXPECT_THAT(found.out, HasSubstr("--nproc_per_node 1 "));
  EXPECT_THAT(found.out, HasSubstr("--gradient_accumulation_steps 2 "));
  const ProcessResult other = run_tessera(with(search, {"--nnodes", "3", "--nproc_per_node", "1"}));
  EXPECT_EQ(other.exit_code, 78);
  EXPECT_THAT(other.err, HasSubstr("micro batch 4 x accumulation 2 x world size 3"));
}

TEST(Plan, TheSearchFindsRanksThatShareRows) {
  const ProcessResult found = run_well(with(kSearch, {"--context_parallel_size", "2"}));
  EXPECT_THAT(found.out, HasSubstr("--context_parallel_size 2 "));
  EXPECT_THAT(found.out, HasSubstr("step     8 rows"));
}

TEST(Plan, SearchesInSeconds) {
  const Stopwatch watch;
  const json found = json::parse(run_well({"plan", "--preset", "llama3-8b", "--max_length", "2048",
                                           "--gradient_accumulation_steps", "16", "--json"})
                                     .out);
  EXPECT_GT(found["num_tried"], 5000);
  EXPECT_LT(watch.seconds(), 30) << "a few seconds on a machine that does nothing else";
}

// The detailed forecast of the best combination has its memory and its time.
TEST(Plan, TheBestCombinationIsThatOfItsMachine) {
  const json found =
      json::parse(run_well(with(kSearch, {"--json", "--sort", "time", "--save_strategy", "no"})).out);
  const json& best = found.at("best");
  const json machine = json::parse(run_well({"plan",
                                             "--preset",
                                             "60m",
                                             "--max_length",
                                             "256",
                                             "--machine",
                                             best["instance"].get<std::string>(),
                                             "--nnodes",
                                             best["num_nodes"].dump(),
                                             "--nproc_per_node",
                                             best["local_world_size"].dump(),
                                             "--zero_stage",
                                             best["zero_stage"].dump(),
                                             "--per_device_train_batch_size",
                                             best["per_device_train_batch_size"].dump(),
                                             "--global_batch_size",
                                             "8",
                                             "--save_strategy",
                                             "no",
                                             "--num_threads",
                                             best["num_threads"].dump(),
                                             "--json"})
                                       .out);
  EXPECT_EQ(machine["passes_per_step"], best["passes_per_step"]);
  EXPECT_NEAR(machine["time"]["step_s"].get<double>(), best["time"]["step_s"].get<double>(), 1e-12);
  EXPECT_EQ(machine["memory"]["available_bytes"], best["available_bytes"]);
  // All but what is resident in the process at the start.
  EXPECT_NEAR(machine["memory"]["node_bytes"].get<double>(), best["node_bytes"].get<double>(), 2e7);
}

TEST(Plan, ThePrintedCommandKeepsWhatWasSetAndTheRowsOfAStep) {
  const json found = json::parse(run_well(with(kSearch, {"--json", "--nnodes", "2", "--learning_rate", "3e-4",
                                                         "--output_dir", "my run"}))
                                     .out);
  const std::string command = found.at("command");
  EXPECT_THAT(command, testing::StartsWith("tessera launch --nnodes 2 --node_rank 0"));
  EXPECT_THAT(command, HasSubstr("--output_dir 'my run'"));
  EXPECT_THAT(command, HasSubstr("--learning_rate 0.0003"));
  EXPECT_THAT(command, testing::Not(HasSubstr("--tokens")));
  const json& best = found.at("best");
  EXPECT_EQ(best["per_device_train_batch_size"].get<int>() * best["gradient_accumulation_steps"].get<int>() *
                best["num_nodes"].get<int>() * best["local_world_size"].get<int>(),
            8);
}

TEST(Plan, CountsTheTokensOfTheDataset) {
  const TinyModel tiny;
  std::vector<std::string> train = tiny.train_arguments("counted", {"--max_steps", "2"});
  run_well(train);
  train[0] = "plan";
  const json found = json::parse(run_well(with(train, {"--instances", "c7i.xlarge", "--json"})).out);
  const json metrics =
      json::parse(read_file(tiny.folder / "counted/metrics.jsonl")
                      .substr(0, read_file(tiny.folder / "counted/metrics.jsonl").find('\n')));
  EXPECT_EQ(found["job"]["num_steps"], 2);
  EXPECT_NEAR(found["job"]["num_tokens"].get<double>(), 2 * metrics["num_tokens"].get<double>(),
              0.2 * metrics["num_tokens"].get<double>());
  EXPECT_THAT(found["job"]["origin"], HasSubstr("an epoch has"));
  const ProcessResult absent = run_tessera({"plan", "--model", tiny.model, "--dataset", "absent.txt"});
  EXPECT_EQ(absent.exit_code, 66);
  EXPECT_EQ(absent.errors().size(), 1u);
}

// An epoch takes as many long rows as short ones, whatever the sizes of the files.
TEST(Plan, CountsTheTokensThatAnEpochTakesOfAMixture) {
  const TinyModel tiny;
  const auto write_rows = [&](const std::string& name, int count, int length) {
    std::string lines;
    for (int row = 0; row < count; ++row)
      lines += json{{"input_ids", std::vector<int>(static_cast<size_t>(length), row)}}.dump() + "\n";
    return tiny.folder.write(name, lines) + ":0.5";
  };
  const json found = json::parse(
      run_well({"plan", "--model", tiny.model, "--num_train_epochs", "2", "--instances", "c7i.xlarge",
                "--json", "--dataset", write_rows("short.jsonl", 90, 4), write_rows("long.jsonl", 20, 60)})
          .out);
  EXPECT_EQ(found["job"]["num_tokens"], 2 * (20 * 4 + 20 * 60));
  EXPECT_EQ(found["job"]["mean_row_tokens"], 32);
}

TEST(Plan, DrawsAPicture) {
  const TinyModel tiny;
  const std::string file = tiny.folder / "plan.svg";
  run_well(with(kSearch, {"--plot", file}));
  EXPECT_THAT(read_file(file), testing::StartsWith("<svg xmlns="));
  EXPECT_EQ(run_tessera(with(kSearch, {"--plot", "/absent/plan.svg"})).exit_code, 74);
}

TEST(Plan, TakesACatalogueOfTheUserAndSaysWhatIsWrongWithIt) {
  const TinyModel tiny;
  const std::string text =
      R"({"processors": {"p": {"name": "P", "instruction_set": "avx512", "cores_per_socket": 8,
      "numa_nodes_per_socket": 1, "threads_per_core": 2, "clock_ghz": 3, "memory_channels": 8,
      "memory_mt_per_s": 4800}}, "families": {"mine": {"provider": "Us", "region": "here", "date": "2026-01-01",
      "processor": "p", "sources": [], "sizes": [{"size": "big", "vcpus": 16, "memory_gib": 64,
      "network_gbps": 10, "usd_per_hour": 0.5}]}}})";
  const std::vector<std::string> plan = {"plan", "--preset", "15m", "--catalogue"};
  EXPECT_THAT(run_well(with(plan, {tiny.folder.write("mine.json", text)})).out, HasSubstr("mine.big"));
  const std::string wrong = tiny.folder.write("wrong.json", text.substr(0, text.find("\"vcpus\"")) + "}]}}}");
  const ProcessResult refused = run_tessera(with(plan, {wrong}));
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_EQ(refused.errors().size(), 1u) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("wrong.json"));
}

TEST(Plan, EndsWith78IfNothingFits) {
  const std::vector<std::string> plan = {"plan", "--preset", "llama3-8b", "--instances", "c7i.xlarge"};
  const ProcessResult none = run_tessera(with(plan, {"--max_nodes", "2"}));
  EXPECT_EQ(none.exit_code, 78);
  ASSERT_EQ(none.errors().size(), 1u) << none.err;
  EXPECT_THAT(none.err, HasSubstr("the run fits on no instance type: a node needs at least"));
  EXPECT_THAT(none.out, HasSubstr("does not fit"));
  const ProcessResult dear = run_tessera(with(kSearch, {"--max_price", "0.001"}));
  EXPECT_EQ(dear.exit_code, 78);
  EXPECT_THAT(dear.err, HasSubstr("no combination is within --max_hours and --max_price: the fastest takes"));
}

TEST(Plan, ShowsAnInstanceOrRatesInDetail) {
  const TinyModel tiny;
  const std::vector<std::string> plan = {"plan", "--preset", "15m", "--json", "--machine"};
  const json instance = json::parse(run_well(with(plan, {"m7i.4xlarge"})).out);
  EXPECT_EQ(instance["num_threads"], 8);
  EXPECT_EQ(instance["network_gbps"], 6.25);
  EXPECT_NEAR(instance["memory"]["available_bytes"].get<double>(), 0.95 * 64 * (int64_t{1} << 30), 2);
  const std::string file = tiny.folder.write("rates.json", R"({"num_cores": 4, "core_bf16_tflops": 0.5})");
  const json rates = json::parse(run_well(with(plan, {file, "--memory", "8GiB"})).out);
  EXPECT_EQ(rates["node_tflops"], 2);
  EXPECT_EQ(rates["num_threads"], 4);
  EXPECT_EQ(run_tessera(with(plan, {"m7i.5xlarge"})).exit_code, 64);
}

TEST(Plan, ShowsARunOnACardThatNeedNotBeHere) {
  const std::vector<std::string> plan = {
      "plan",     "--preset", "llama3-8b", "--max_length", "2048",
      "--tokens", "1e9",      "--device",  "cuda",         "--per_device_train_batch_size",
      "4",        "--optim",  "adamw_bf16"};
  const ProcessResult one = run_well(with(plan, {"--machine", "p5en.48xlarge"}));
  EXPECT_THAT(one.out, HasSubstr("total        NVIDIA H200"));
  EXPECT_THAT(one.out, HasSubstr("tokens/s"));
  const ProcessResult small = run_tessera(with(plan, {"--machine", "g6e.xlarge"}));
  EXPECT_EQ(small.exit_code, 78);
  EXPECT_THAT(small.err, HasSubstr("more of NVIDIA L40S"));
  // Without --machine a card must be here.
  const ProcessResult here = run_tessera(plan);
  if (here.exit_code != 0) {
    EXPECT_EQ(here.exit_code, 78) << here.err;
    EXPECT_THAT(here.err, HasSubstr("device cuda"));
  }
  const ProcessResult all = run_well({"plan", "--preset", "llama3.2-1b", "--max_length", "2048", "--tokens",
                                      "1e9", "--device", "cuda", "--instances", "all", "--sort", "price"});
  EXPECT_THAT(all.out, HasSubstr("GiB used: of a card"));
  EXPECT_THAT(all.out, HasSubstr("g6e.xlarge"));
  EXPECT_THAT(all.out, HasSubstr("--device cuda"));
  for (const std::string& line : lines_of(all.out)) EXPECT_LE(line.size(), 80u) << line;
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
  expect_usage({"plan", "--preset", "15m", "--instances", "c9i.*"}, "its families are");
  expect_usage({"plan", "--preset", "15m", "--sort", "size"}, "--sort");
  expect_usage({"plan", "--preset", "15m", "--max_hours", "-1"}, "--max_hours");
  expect_usage({"plan", "--preset", "15m", "--tokens", "0"}, "--tokens");
  expect_usage({"plan", "--preset", "15m", "--memory", "8GiB", "--spot"}, "give one of the two");
  expect_usage({"plan", "--preset", "15m", "--nnodes", "2", "--spot"}, "add --instances all");
  expect_usage({"plan", "--preset", "15m", "--machine", "here", "--tflops", "1"}, "--tflops");
  expect_usage({"plan", "--preset", "15m", "--dataset", "a.txt"}, "--tokenizer");
  expect_usage({"plan", "--preset", "15m", "--device", "cuda", "--machine", "c7i.4xlarge"},
               "has no NVIDIA card");
  expect_usage({"plan", "--preset", "15m", "--device", "cuda", "--machine", "rates.json"}, "of a processor");
  expect_usage({"plan", "--preset", "15m", "--device", "cuda", "--nnodes", "2"}, "plans for a single card");
}

}  // namespace
}  // namespace tessera
