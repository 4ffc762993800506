// The program reports a rank that is slower than the others while the run continues: real processes, one of
// which is stopped most of the time.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

// During its lifetime, lets a process run for only a fifth of the time.
class DutyCycle {
 public:
  explicit DutyCycle(pid_t pid)
      : thread_([this, pid] {
          while (!over_) {
            kill(pid, SIGSTOP);
            std::this_thread::sleep_for(80ms);
            kill(pid, SIGCONT);
            std::this_thread::sleep_for(20ms);
          }
        }) {}
  ~DutyCycle() {
    over_ = true;
    thread_.join();
  }
  DutyCycle(const DutyCycle&) = delete;
  DutyCycle& operator=(const DutyCycle&) = delete;

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// Steps of about 100 ms: shorter ones are not conclusive.
std::vector<std::string> arguments_of(const TinyModel& tiny) {
  const std::string model = tiny.folder / "larger";
  std::string config = tiny_config(320);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"hidden_size\": 32", "\"hidden_size\": 256"},
           {"\"intermediate_size\": 64", "\"intermediate_size\": 512"}}) {
    config.replace(config.find(from), from.size(), to);
  }
  run_well({"init", "--config", tiny.folder.write("larger.json", config), "--tokenizer", tiny.tokenizer,
            "--output", model, "--dtype", "float32"});
  std::vector<std::string> arguments = {tessera_binary(), "launch", "--nproc_per_node", "2"};
  for (const std::string& argument :
       tiny.train_arguments("out", {"--model", model, "--dtype", "float32", "--per_device_train_batch_size",
                                    "16", "--max_steps", "100000", "--num_train_epochs", "100000"})) {
    arguments.push_back(argument);
  }
  return arguments;
}

TEST(SlowRank, IsNamedInLogAndMetricsAndTheRunGoesOn) {
  const TinyModel tiny;
  StartedProcess agent(arguments_of(tiny), {});
  const std::string named = "rank 1 on host ";
  const std::string slow = " is slow and holds the others up";
  ASSERT_TRUE(wait_for_steps(tiny.folder / "out", 2, 30s)) << agent.err();
  {
    const DutyCycle slowed(pid_of_rank(agent.pid(), 1));
    EXPECT_TRUE(agent.wait_for_output(slow, 60s)) << agent.err();
  }
  EXPECT_TRUE(agent.wait_for_output("is no longer slow", 60s)) << agent.err();
  EXPECT_FALSE(agent.has_ended());
  const std::string log = agent.err();
  const size_t at = log.find(slow);
  ASSERT_NE(at, std::string::npos);
  const size_t line = log.rfind('\n', at) + 1;
  EXPECT_THAT(log.substr(line, at - line), testing::HasSubstr(named)) << log;
  EXPECT_EQ(log.find("rank 0 on host"), std::string::npos) << log;

  double most = 0;
  std::istringstream metrics(read_file(tiny.folder / "out/metrics.jsonl"));
  for (std::string text; std::getline(metrics, text) && !metrics.eof();) {
    const auto step = nlohmann::json::parse(text);
    if (step.at("slowest_rank") == 1)
      most = std::max(most, step.at("slowest_rank_times_median").get<double>());
  }
  EXPECT_GE(most, 1.4);
}

}  // namespace
}  // namespace tessera
