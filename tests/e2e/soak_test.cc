// Ranks that are killed at random moments: the job ends with the weights of the undisturbed run, whatever the
// moment. A few seeds here; scripts/soak.sh runs many, and the tests that take minutes:
//     TESSERA_SOAK_SEEDS       how many seeds (3), from TESSERA_SOAK_FIRST_SEED (1) on
//     TESSERA_SOAK_MINUTES     also a training of so long with a kill every 20 s, and overloaded processors
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "e2e/started_process.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr auto kHang = 120s;
constexpr auto kPoll = 2ms;

double number_from_environment(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

// Of the last complete line in metrics.jsonl; 0 when there is none.
int last_step(const fs::path& output) {
  const std::string lines = read_file(output / "metrics.jsonl");
  const size_t end = lines.rfind('\n');
  if (end == std::string::npos) return 0;
  const size_t begin = end == 0 ? std::string::npos : lines.rfind('\n', end - 1);
  const std::string line = lines.substr(begin == std::string::npos ? 0 : begin + 1, end);
  const std::string key = "\"step\":";
  const size_t at = line.find(key);
  return at == std::string::npos ? 0 : std::atoi(line.c_str() + at + key.size());
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// What one kill cost.
struct Recovery {
  double seconds = 0;  // until the next step was finished
  int lost_steps = 0;  // that had been finished and were done again
};

// A training of four ranks on this machine under an agent that starts them again.
class Training {
 public:
  Training(const std::vector<std::string>& arguments, fs::path output,
           const std::vector<std::string>& launch_flags = {})
      : output_(std::move(output)) {
    std::vector<std::string> argv = {tessera_binary(),       "launch",         "--nproc_per_node",
                                     std::to_string(kRanks), "--max_restarts", "1000"};
    argv.insert(argv.end(), launch_flags.begin(), launch_flags.end());
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    process_.emplace(argv, StartOptions{});
  }

  StartedProcess& process() { return *process_; }
  int step() const { return last_step(output_); }

  bool wait_for_step(int wanted, std::chrono::milliseconds limit) {
    return wait_until([&] { return step() >= wanted; }, limit);
  }

  // Waits until there is such a rank, and kills it. Nothing when the job ends without one more step.
  std::optional<Recovery> kill_rank(int rank) {
    pid_t pid = 0;
    wait_until([&] { return (pid = pid_of_rank(process_->pid(), rank)) != 0; }, kHang);
    if (pid == 0) return std::nullopt;
    const size_t restarts = num_restarts();
    const auto begin = Clock::now();
    kill(pid, SIGKILL);
    if (!wait_until([&] { return num_restarts() > restarts; }, kHang)) return std::nullopt;
    const int before = step();
    // The first change is that the file is cut to the steps of the checkpoint, unless that has all of them.
    int resumed_at = before;
    if (!wait_until([&] { return (resumed_at = step()) != before; }, kHang)) return std::nullopt;
    if (resumed_at < before && !wait_until([&] { return step() > resumed_at; }, kHang)) return std::nullopt;
    return Recovery{.seconds = Seconds(Clock::now() - begin).count(),
                    .lost_steps = std::max(0, before - resumed_at)};
  }

  size_t num_restarts() const {
    const std::string text = process_->err();
    size_t count = 0;
    for (size_t at = text.find("; restart "); at != std::string::npos; at = text.find("; restart ", at + 1))
      ++count;
    return count;
  }

 private:
  template <typename Condition>
  bool wait_until(Condition&& holds, std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    while (!holds()) {
      if (process_->has_ended() || Clock::now() >= deadline) return holds();
      std::this_thread::sleep_for(kPoll);
    }
    return true;
  }

  fs::path output_;
  std::optional<StartedProcess> process_;
};

class Soak : public testing::Test {
 protected:
  std::vector<std::string> arguments(const std::string& output, int max_steps,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--per_device_train_batch_size",
                                    "1",
                                    "--max_steps",
                                    std::to_string(max_steps),
                                    "--num_train_epochs",
                                    "1000000",
                                    "--save_strategy",
                                    "steps",
                                    "--save_steps",
                                    "5",
                                    "--save_total_limit",
                                    "2",
                                    "--measure_peak",
                                    "false"};
    all.insert(all.end(), more.begin(), more.end());
    return tiny_.train_arguments(output, all);
  }
  fs::path output(const std::string& name) const { return tiny_.folder / name; }

  TinyModel tiny_;
};

TEST_F(Soak, KilledRanksLeaveTheWeightsOfTheUndisturbedRun) {
  constexpr int kSteps = 60;
  const int num_seeds = static_cast<int>(number_from_environment("TESSERA_SOAK_SEEDS", 3));
  const auto first_seed = static_cast<uint64_t>(number_from_environment("TESSERA_SOAK_FIRST_SEED", 1));
  std::string expected;
  {
    Training training(arguments("reference", kSteps), output("reference"));
    ASSERT_TRUE(training.process().wait(kHang));
    ASSERT_EQ(training.process().result().exit_code, 0) << training.process().err();
    expected = read_file(output("reference") / "model.safetensors");
    ASSERT_FALSE(expected.empty());
  }
  std::vector<double> seconds;
  std::vector<double> lost;
  int num_killed = 0;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(num_seeds); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    // So long after so many steps: in every part of a step, and between start and first step.
    const int steps = static_cast<int>(random() % kSteps);
    const Seconds delay(std::uniform_real_distribution<double>(0, steps == 0 ? 0.3 : 0.05)(random));
    const int rank = static_cast<int>(random() % kRanks);
    Training training(arguments("out", kSteps), output("out"));
    ASSERT_TRUE(training.wait_for_step(steps, kHang)) << training.process().err();
    std::this_thread::sleep_for(delay);
    const auto recovery = training.kill_rank(rank);
    ASSERT_TRUE(training.process().wait(kHang)) << "hangs\n" << training.process().err();
    EXPECT_EQ(training.process().result().exit_code, 0) << training.process().err();
    EXPECT_TRUE(read_file(output("out") / "model.safetensors") == expected) << "other weights";
    EXPECT_EQ(training.step(), kSteps);
    EXPECT_LE(training.num_restarts(), 1u);
    num_killed += static_cast<int>(training.num_restarts());
    if (training.num_restarts() > 0) {
      EXPECT_THAT(training.process().err(),
                  testing::ContainsRegex(fmt::format("rank {} on host .* was killed by signal 9", rank)));
    }
    if (recovery) {
      seconds.push_back(recovery->seconds);
      lost.push_back(recovery->lost_steps);
    }
    std::cout << fmt::format("seed {}: rank {} killed {:.3f} s after step {}: {}", seed, rank, delay.count(),
                             steps,
                             recovery ? fmt::format("next step after {:.2f} s, {} steps done again",
                                                    recovery->seconds, recovery->lost_steps)
                                      : "all steps were done")
              << std::endl;
    fs::remove_all(output("out"));
  }
  std::cout << fmt::format(
      "{} seeds, {} restarts, {} of them with steps left; kill to next step p50 {:.2f} s, p99 {:.2f} s; "
      "steps done again p50 "
      "{:.0f}, "
      "most {:.0f}\n",
      num_seeds, num_killed, seconds.size(), percentile(seconds, 0.5), percentile(seconds, 0.99),
      percentile(lost, 0.5), percentile(lost, 1));
  EXPECT_GT(num_killed, num_seeds / 2) << "so few kills test nothing";
}

// It is found by its silence, ended, and the job goes on; that does not count.
TEST_F(Soak, StoppedRankIsStartedAgainAfterTheSilence) {
  constexpr int kSteps = 60;
  Training training(arguments("out", kSteps), output("out"),
                    {"--max_restarts", "1", "--rdzv_conf", "heartbeat_timeout=2"});
  ASSERT_TRUE(training.wait_for_step(10, kHang)) << training.process().err();
  const auto begin = Clock::now();
  kill(pid_of_rank(training.process().pid(), 2), SIGSTOP);
  ASSERT_TRUE(training.process().wait_for_output("; restart", kHang)) << training.process().err();
  const double seconds = Seconds(Clock::now() - begin).count();
  EXPECT_GE(seconds, 1.5);
  EXPECT_LT(seconds, 2 + 1 + 5) << "the silence, the time to end of a rank that does not, and a busy machine";
  ASSERT_TRUE(training.process().wait(kHang)) << training.process().err();
  EXPECT_EQ(training.process().result().exit_code, 0) << training.process().err();
  EXPECT_THAT(training.process().err(), HasSubstr("silent for 2.0 s; restart, which does not count"));
  EXPECT_EQ(training.step(), kSteps);
}

// Of the steps in metrics.jsonl, which are those that were not done again, from one on.
double seconds_of_steps(const fs::path& output, int first) {
  double seconds = 0;
  int step = 0;
  std::istringstream lines(read_file(output / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "\"step_time_s\":";
    const size_t at = line.find(key);
    if (++step >= first && at != std::string::npos) seconds += std::atof(line.c_str() + at + key.size());
  }
  return seconds;
}

// ETTR: of the wall time, the share of steps that were not done again.
TEST_F(Soak, UsefulShareOfTimeWithAKillEvery20Seconds) {
  const double minutes = number_from_environment("TESSERA_SOAK_MINUTES", 0);
  if (minutes <= 0) GTEST_SKIP() << "takes minutes: TESSERA_SOAK_MINUTES";
  std::mt19937_64 random(1);
  std::vector<double> seconds;
  int lost = 0;
  // Steps of some tenths of a second.
  const std::string model = tiny_.folder / "15m";
  run_well({"init", "--preset", "15m", "--tokenizer", tiny_.tokenizer, "--output", model});
  Training training(
      arguments("out", 10'000, {"--model", model, "--gradient_accumulation_steps", "8", "--save_steps", "2"}),
      output("out"));
  ASSERT_TRUE(training.wait_for_step(1, kHang)) << training.process().err();
  const auto begin = Clock::now();
  const int first = training.step() + 1;
  for (auto next = begin + 20s; next <= begin + minutes * 60s; next += 20s) {
    std::this_thread::sleep_until(next);
    const auto recovery = training.kill_rank(static_cast<int>(random() % kRanks));
    ASSERT_TRUE(recovery) << training.process().err();
    seconds.push_back(recovery->seconds);
    lost += recovery->lost_steps;
  }
  const double wall = Seconds(Clock::now() - begin).count();
  const double useful = seconds_of_steps(output("out"), first) / wall;
  std::cout << fmt::format(
                   "{} kills in {:.0f} s: useful share of time (ETTR) {:.3f}; {} steps, {} done again; kill "
                   "to next "
                   "step p50 {:.2f} s, p99 {:.2f} s",
                   seconds.size(), wall, useful, training.step() - first + 1, lost, percentile(seconds, 0.5),
                   percentile(seconds, 0.99))
            << std::endl;
  EXPECT_GE(useful, 0.85);
}

// As many busy processes again as there are ranks, and all of them on half as many processors.
TEST_F(Soak, NoFalseAlarmOnOverloadedProcessors) {
  if (number_from_environment("TESSERA_SOAK_MINUTES", 0) <= 0) {
    GTEST_SKIP() << "takes 20 s of all processors: TESSERA_SOAK_MINUTES";
  }
  std::vector<std::unique_ptr<StartedProcess>> busy;
  for (int i = 0; i < kRanks; ++i) {
    busy.push_back(std::make_unique<StartedProcess>(
        std::vector<std::string>{"/bin/sh", "-c", "while :; do :; done"}, StartOptions{}));
  }
  Training training(arguments("out", 1'000'000), output("out"));
  ASSERT_TRUE(training.wait_for_step(1, kHang)) << training.process().err();
  std::this_thread::sleep_for(20s);
  EXPECT_FALSE(training.process().has_ended()) << training.process().err();
  EXPECT_THAT(training.process().err(), testing::Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace tessera
