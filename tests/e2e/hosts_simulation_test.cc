// Compares the prediction of `tessera simulate` with the run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

constexpr int kNumHosts = 2;
constexpr double kMbitPerS = 40;

std::vector<std::string> joined(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

double median_step_s(const std::string& metrics) {
  std::vector<double> seconds;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (step["step"] > 2) seconds.push_back(step["step_time_s"]);
  }
  if (seconds.empty()) return 0;
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  return seconds[seconds.size() / 2];
}

// The network takes most of the step, so that the test says something about it on a busy machine, too.
TEST(HostsSimulation, StepsOverLimitedLinksTakeAsLongAsSimulated) {
  const Hosts hosts(kNumHosts);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  for (int host = 0; host < kNumHosts; ++host) {
    const std::string problem = hosts.limit_link(host, kMbitPerS);
    if (!problem.empty()) GTEST_SKIP() << problem;
  }
  const TinyModel tiny;
  const std::filesystem::path folder = tiny.folder.path();
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 192,
             "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 320, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
             "tie_word_embeddings": false})";
  const std::string model = folder / "wider";
  run_well({"init", "--config", folder / "config.json", "--tokenizer", tiny.tokenizer, "--output", model});
  std::ofstream(folder / "machine.json") << fmt::format(
      R"({{"num_cores": 1, "network_gbps": {}, "network_efficiency": 0.94}})", kMbitPerS / 1000);

  for (const std::string schedule : {"per_step", "per_layer"}) {
    const std::string output = folder / schedule;
    const std::vector<std::string> flags = {"--max_length",
                                            "64",
                                            "--per_device_train_batch_size",
                                            "1",
                                            "--zero_stage",
                                            "3",
                                            "--gather_schedule",
                                            schedule,
                                            "--num_threads",
                                            "1"};
    HostJobOptions options;
    options.num_nodes = kNumHosts;
    options.command =
        joined({"train", "--model", model, "--dataset", tiny.text_file, "--output_dir", output, "--packing",
                "--max_steps", "9", "--save_strategy", "no", "--measure_peak", "false"},
               flags);
    HostJob job(hosts, options);
    ASSERT_TRUE(job.wait(120s));
    ASSERT_EQ(job.agent(0).result().exit_code, 0) << job.all_output();
    const double measured_s = median_step_s(read_file(output + "/metrics.jsonl"));

    const ProcessResult plan =
        run_well(joined({"simulate", "--model", model, "--machine", folder / "machine.json", "--nnodes",
                         std::to_string(kNumHosts), "--measured", output + "/metrics.jsonl", "--json"},
                        flags));
    const nlohmann::json cluster = nlohmann::json::parse(plan.out)["clusters"][0];
    EXPECT_GT(cluster["seconds"]["NIC"].get<double>(), 0.2 * measured_s) << schedule;
    EXPECT_NEAR(cluster["step_s"].get<double>() / measured_s, 1, 0.25) << schedule << "\n" << plan.out;
  }
}

}  // namespace
}  // namespace tessera
