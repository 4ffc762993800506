// Commands other than train under tessera launch: some share the work, others refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> launch(int num_ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"launch", "--nproc_per_node", std::to_string(num_ranks)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

void expect_one_error(const ProcessResult& result, int exit_code,
                      const testing::Matcher<std::string>& message) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0], message);
}

class Ranks : public testing::Test {
 protected:
  std::vector<std::string> init(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        "init", "--config", tiny_.model, "--tokenizer", tiny_.tokenizer, "--output", output, "--seed", "7"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<std::string> eval(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        "eval",   "--model",      tiny_.model, "--dataset", tiny_.text_file,
        "--json", "--max_length", "32",        "--packing", "--per_device_eval_batch_size",
        "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TinyModel tiny_;
};

TEST_F(Ranks, InitHasTheBytesOfOneProcess) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    run_well(init(tiny_.folder / "alone", {"--dtype", dtype, "--overwrite"}));
    for (const int num_ranks : {2, 4}) {
      const ProcessResult result =
          run_well(launch(num_ranks, init(tiny_.folder / "together", {"--dtype", dtype, "--overwrite"})));
      EXPECT_THAT(result.out, HasSubstr("parameters"));
      EXPECT_THAT(result.out, testing::Not(HasSubstr("[rank"))) << "said once";
      EXPECT_EQ(files_of(tiny_.folder / "together"), files_of(tiny_.folder / "alone"))
          << num_ranks << " ranks, " << dtype;
    }
  }
}

TEST_F(Ranks, InitThatFailsEndsAllWithOneMessageAndLeavesNothing) {
  const std::string output = tiny_.folder / "model2";
  fs::create_directory(output);
  tiny_.folder.write("model2/mine", "precious");
  expect_one_error(run_tessera(launch(3, init(output))), 64, HasSubstr("exists and is not an empty folder"));
  EXPECT_EQ(files_of(output).size(), 1u);
  expect_one_error(run_tessera(launch(3, init(tiny_.folder / "model3", {"--seed", "-1"}))), 64,
                   HasSubstr("--seed: expected 0 or more"));
  // A limit smaller than the model.
  expect_one_error(run_tessera(launch(2, {"init", "--preset", "15m", "--tokenizer", tiny_.tokenizer,
                                          "--output", tiny_.folder / "model4"}),
                               {.max_file_bytes = 1'000'000}),
                   74, AllOf(HasSubstr("model4"), HasSubstr("File too large")));
  for (const auto& entry : fs::directory_iterator(tiny_.folder / "model4")) ADD_FAILURE() << entry.path();
}

TEST_F(Ranks, EvalHasTheResultOfOneProcess) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    const auto alone = nlohmann::json::parse(run_well(eval({"--dtype", dtype})).out);
    for (const int num_ranks : {2, 3}) {
      const auto together = nlohmann::json::parse(run_well(launch(num_ranks, eval({"--dtype", dtype}))).out);
      for (const char* name : {"loss", "perplexity", "num_rows", "num_tokens", "num_target_tokens"}) {
        EXPECT_EQ(together[name], alone[name]) << name << ", " << num_ranks << " ranks, " << dtype;
      }
    }
  }
}

TEST_F(Ranks, EvalScoresChoicesAsOneProcessDoes) {
  std::string lines;
  for (int i = 0; i < 7; ++i) {
    lines +=
        fmt::format(R"({{"context": "the {}", "choices": [" model", " a", " weights of it"], "answer": {}}})"
                    "\n",
                    i, i % 3);
  }
  const std::string file = tiny_.folder.write("questions.jsonl", lines);
  const std::vector<std::string> choices = {"eval", "--model", tiny_.model, "--choices", file, "--json"};
  const auto alone = nlohmann::json::parse(run_well(choices).out);
  EXPECT_EQ(alone["num_questions"], 7);
  EXPECT_FALSE(alone.contains("loss"));
  const auto together = nlohmann::json::parse(run_well(launch(2, choices)).out);
  for (const char* name : {"accuracy", "accuracy_stderr", "accuracy_norm", "accuracy_norm_stderr"}) {
    EXPECT_EQ(together[name], alone[name]) << name;
  }
  const auto both = nlohmann::json::parse(run_well(eval({"--choices", file})).out);
  EXPECT_EQ(both["accuracy"], alone["accuracy"]);
  EXPECT_TRUE(both.contains("perplexity"));
  expect_one_error(
      run_tessera({"eval", "--model", tiny_.model, "--choices", tiny_.folder.write("bad.jsonl", "{}\n")}), 65,
      AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("context")));
}

TEST_F(Ranks, GenerateHasTheTextOfOneProcess) {
  const std::string file = tiny_.folder.write("prompts.txt", "the model\na\n\nweights are\n");
  const std::vector<std::string> several = {"generate",         "--model", tiny_.model, "--prompts", file,
                                            "--max_new_tokens", "8",       "--seed",    "3"};
  const std::string alone = run_well(several).out;
  std::istringstream lines(alone);
  int num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) {
    const auto json = nlohmann::json::parse(line);
    const std::string prompt = json["prompt"];
    const std::vector<std::string> one = {"generate",         "--model", tiny_.model, "--prompt", prompt,
                                          "--max_new_tokens", "8",       "--seed",    "3"};
    EXPECT_EQ(run_well(one).out, prompt + json["completion"].get<std::string>() + "\n");
    if (num_lines > 0) continue;
    EXPECT_EQ(run_well(launch(2, one)).out, run_well(one).out);
  }
  EXPECT_EQ(num_lines, 3);
  EXPECT_EQ(run_well(launch(2, several)).out, alone);
  expect_one_error(run_tessera(launch(2, {"generate", "--model", tiny_.model, "--prompt", "-"})), 64,
                   HasSubstr("no standard input"));
  expect_one_error(run_tessera({"generate", "--model", tiny_.model, "--prompts",
                                tiny_.folder.write("bad.jsonl", "{\"text\": 1}\n")}),
                   65, AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("prompt")));
}

TEST_F(Ranks, EvalWithDifferentSettingsIsRefused) {
  expect_one_error(
      run_tessera(launch(2, {"--", "/bin/sh", "-c",
                             std::string("exec ") + tessera_binary() + " eval --model " + tiny_.model +
                                 " --dataset " + tiny_.text_file + " --max_length 3$RANK"})),
      78, HasSubstr("setting 'max_length' differs: '30' for rank 0"));
}

TEST_F(Ranks, CommandsThatShareNothingRefuseALauncher) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"tokenize", "--tokenizer", tiny_.tokenizer, "--input", tiny_.text_file},
           {"inspect", tiny_.model}}) {
    SCOPED_TRACE(command[0]);
    const ProcessResult result = run_tessera(launch(2, command));
    expect_one_error(result, 64,
                     AllOf(HasSubstr("'" + command[0] + "' runs as one process"),
                           HasSubstr("tessera launch has started 2"), HasSubstr("without the launcher")));
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(run_tessera(launch(1, command)).exit_code, 0) << "a single rank is not a multi-rank job";
  }
  // A shell in a pod of a job sees that job's variables, but no launcher started ranks there.
  EXPECT_EQ(run_tessera({"inspect", tiny_.model},
                        {.environment = {"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=head", "MASTER_PORT=29500"}})
                .exit_code,
            0);
}

TEST_F(Ranks, InitOfSeveralHostsNeedsASharedFolder) {
  const Hosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  run_well(init(tiny_.folder / "alone"));
  {
    HostJob job(hosts, {.ranks_per_node = 2, .command = init(tiny_.folder / "shared")});
    ASSERT_TRUE(job.wait(30s));
    EXPECT_EQ(job.agent(0).result().exit_code, 0) << job.all_output();
    EXPECT_EQ(files_of(tiny_.folder / "shared"), files_of(tiny_.folder / "alone"));
  }
  // On the second host, another file system is mounted over the folder.
  fs::create_directory(tiny_.folder / "own");
  const auto mount = hosts.start(1, {"mount", "-t", "tmpfs", "tmpfs", tiny_.folder / "own"});
  ASSERT_TRUE(mount->wait(10s) && mount->result().exit_code == 0) << mount->err();
  HostJob job(hosts, {.command = init(tiny_.folder / "own/model")});
  ASSERT_TRUE(job.wait(60s));
  for (const int node : {0, 1}) {
    expect_one_error(job.agent(node).result(), 78,
                     AllOf(HasSubstr("own/model"), HasSubstr("choose a folder that all machines share")));
  }
  EXPECT_THAT(job.agent(0).result().errors()[0], StartsWith("host host1: "))
      << "an error of another host also names the host";
  EXPECT_TRUE(files_of(tiny_.folder / "own/model").empty());
}

}  // namespace
}  // namespace tessera
