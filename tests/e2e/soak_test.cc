// Ranks are killed at random moments: whatever the moment, the job ends with the weights of the undisturbed
// run. A few seeds here; scripts/soak.sh runs many, and the tests that take minutes:
//     TESSERA_SOAK_SEEDS       number of seeds (3), starting at TESSERA_SOAK_FIRST_SEED (1)
//     TESSERA_SOAK_MINUTES     also a training run this long with a kill every 20 s, and overloaded
//     processors
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
#include <thread>

#include "e2e/process.h"
#include "e2e/step_timeline.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

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

// The step of the last complete line in metrics.jsonl; 0 if there is none.
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

// The cost of one kill.
struct Recovery {
  double seconds = 0;  // until the next step was finished
  int lost_steps = 0;  // finished steps that had to be repeated
};

// A training run with four ranks on this machine under an agent that restarts them.
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

  // Waits for the rank to exist and kills it. nullopt if the job ends without another step.
  std::optional<Recovery> kill_rank(int rank) {
    pid_t pid = 0;
    wait_until([&] { return (pid = pid_of_rank(process_->pid(), rank)) != 0; }, kHang);
    if (pid == 0) return std::nullopt;
    const size_t restarts = num_restarts();
    const auto begin = Clock::now();
    kill(pid, SIGKILL);
    if (!wait_until([&] { return num_restarts() > restarts; }, kHang)) return std::nullopt;
    const int before = step();
    // First the file is truncated to the steps of the checkpoint, unless that has all of them.
    int resumed_at = before;
    if (!wait_until([&] { return (resumed_at = step()) != before; }, kHang)) return std::nullopt;
    if (resumed_at < before && !wait_until([&] { return step() > resumed_at; }, kHang)) return std::nullopt;
    return Recovery{.seconds = Seconds(Clock::now() - begin).count(),
                    .lost_steps = std::max(0, before - resumed_at)};
  }

  // Follows the steps until `holds` is true; false if the job ends first or that takes too long.
  template <typename Condition>
  bool follow(StepTimeline* timeline, Condition&& holds) {
    return wait_until(
        [&] {
          timeline->look();
          return holds();
        },
        kHang);
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
    // Kill after a random number of steps and a random delay: in any part of a step, or between start and
    // first step.
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
  EXPECT_GT(num_killed, num_seeds / 2) << "too few kills to test anything";
}

// It is detected by its silence and killed, and the job resumes; the restart is not counted.
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
  EXPECT_THAT(training.process().err(),
              testing::AllOf(HasSubstr("silent for 2.0 s"), HasSubstr("; restart, not counted")));
  EXPECT_EQ(training.step(), kSteps);
}

// Restarts are limited: a start without progress points to a problem of the program or the machine.
TEST_F(Soak, RankThatStopsAtEveryStartEndsTheJob) {
  const std::string model = tiny_.folder / "15m";
  run_well({"init", "--preset", "15m", "--tokenizer", tiny_.tokenizer, "--output", model});
  const std::string rows = tiny_.folder.write("long.txt", sample_text(20'000));
  // A step takes seconds.
  Training training(
      arguments("out", 10, {"--model", model, "--dataset", rows, "--gradient_accumulation_steps", "256"}),
      output("out"), {"--max_restarts", "5", "--rdzv_conf", "heartbeat_timeout=1"});
  const auto num_plans = [&] {
    const std::string text = training.process().out();
    size_t count = 0;
    for (size_t at = text.find("parameters\n"); at != std::string::npos;
         at = text.find("parameters\n", at + 1))
      ++count;
    return count;
  };
  for (size_t start = 1; start <= 4; ++start) {
    const auto limit = Clock::now() + kHang;
    while (num_plans() < start && !training.process().has_ended() && Clock::now() < limit) {
      std::this_thread::sleep_for(kPoll);
    }
    ASSERT_EQ(num_plans(), start) << training.process().err();
    kill(pid_of_rank(training.process().pid(), 2), SIGSTOP);
  }
  ASSERT_TRUE(training.process().wait(kHang)) << training.process().err();
  EXPECT_EQ(training.process().result().exit_code, 75) << training.process().err();
  EXPECT_EQ(training.num_restarts(), 0u) << "no counted restarts";
  EXPECT_THAT(training.process().err(), HasSubstr("error: rank 2 on host "));
  EXPECT_THAT(training.process().err(),
              HasSubstr("not started again: 4 starts in a row did not finish a step"));
}

// Checks the thread names of a rank.
TEST_F(Soak, RanksAreNamedAsTheProgram) {
  Training training(arguments("out", 1'000'000), output("out"));
  ASSERT_TRUE(training.wait_for_step(1, kHang)) << training.process().err();
  const pid_t rank = pid_of_rank(training.process().pid(), 1);
  int num_threads = 0;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", rank))) {
    EXPECT_EQ(read_file(thread.path() / "comm"), "tessera\n");
    ++num_threads;
  }
  EXPECT_GT(num_threads, 1);
}

// Measured before the actual runs: how long a step and a checkpoint take here.
struct Pace {
  double step_s = 0;   // median
  double stall_s = 0;  // median over the checkpoints
  double write_s = 0;
};

Pace pace_of(const std::vector<StepTimeline::Step>& steps) {
  std::vector<double> seconds, stalls, writes;
  for (const StepTimeline::Step& step : steps) {
    seconds.push_back(step.seconds);
    if (step.write_s == 0) continue;
    stalls.push_back(step.stall_s);
    writes.push_back(step.write_s);
  }
  return {percentile(seconds, 0.5), percentile(stalls, 0.5), percentile(writes, 0.5)};
}

// A training run whose steps take a few tenths of a second: 4,096 tokens, 12 million parameters, and a
// checkpoint of 150 MB.
class UsefulShare : public Soak {
 protected:
  UsefulShare() : model_(tiny_.folder / "15m"), text_(tiny_.folder.write("long.txt", sample_text(20'000))) {
    run_well({"init", "--preset", "15m", "--tokenizer", tiny_.tokenizer, "--output", model_});
  }

  std::vector<std::string> arguments(const std::string& output, int max_steps, int save_steps) const {
    return Soak::arguments(
        output, max_steps,
        {"--model", model_, "--dataset", text_, "--max_length", "128", "--gradient_accumulation_steps", "8",
         "--save_steps", std::to_string(save_steps)});
  }

  Pace measure_pace() const {
    constexpr int kSteps = 24;
    Training training(arguments("pace", kSteps, 6), output("pace"));
    StepTimeline timeline(output("pace") / "metrics.jsonl");
    while (!training.process().has_ended()) {
      timeline.look();
      std::this_thread::sleep_for(kPoll);
    }
    EXPECT_EQ(training.process().result().exit_code, 0) << training.process().err();
    EXPECT_GE(timeline.counting().size(), size_t{kSteps / 2});
    return pace_of(timeline.counting());
  }

  std::string model_;
  std::string text_;
};

// ETTR: the share of the wall time spent on steps that were not repeated. Checkpoints are written as often as
// a user who knows the failure rate would write them.
TEST_F(UsefulShare, IsHighWithAKillEvery20Seconds) {
  constexpr auto kBetweenKills = 20s;
  const double minutes = number_from_environment("TESSERA_SOAK_MINUTES", 0);
  if (minutes <= 0) GTEST_SKIP() << "takes minutes: TESSERA_SOAK_MINUTES";
  const Pace pace = measure_pace();
  const int save_steps =
      steps_between_checkpoints(pace.step_s, pace.stall_s, pace.write_s, Seconds(kBetweenKills).count());
  std::cout << fmt::format(
                   "a step takes {:.3f} s, a checkpoint {:.2f} s beside the steps, which it stops for "
                   "{:.4f} s: --save_steps {}",
                   pace.step_s, pace.write_s, pace.stall_s, save_steps)
            << std::endl;

  std::mt19937_64 random(1);
  Training training(arguments("out", 1'000'000, save_steps), output("out"));
  StepTimeline timeline(output("out") / "metrics.jsonl");
  ASSERT_TRUE(training.follow(&timeline, [&] { return timeline.last_step() >= 1; }));
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(minutes * 60s);
  std::vector<Kill> kills;
  for (auto next = begin + kBetweenKills; next < end; next += kBetweenKills) {
    ASSERT_TRUE(training.follow(&timeline, [&] { return Clock::now() >= next; }));
    const pid_t pid = pid_of_rank(training.process().pid(), static_cast<int>(random() % kRanks));
    if (pid == 0) continue;  // still starting
    const size_t restarts = training.num_restarts();
    kills.push_back({.at = Clock::now(), .ranks_ended = {}});
    kill(pid, SIGKILL);
    ASSERT_TRUE(training.follow(&timeline, [&] { return training.num_restarts() > restarts; }))
        << "the job has ended or hangs\n"
        << training.process().err();
    kills.back().ranks_ended = Clock::now();
  }
  ASSERT_TRUE(training.follow(&timeline, [&] { return Clock::now() >= end; })) << training.process().err();

  ASSERT_FALSE(kills.empty());
  const TimeUse use = time_use(timeline, kills, begin, timeline.all().back().end);
  std::cout << fmt::format("{} kills in {:.0f} s; {} steps, {} of them done again; a step took {:.3f} s\n{}",
                           kills.size(), use.wall_s, timeline.all().size(), timeline.undone().size(),
                           pace_of(timeline.all()).step_s, use.table())
            << std::flush;
  EXPECT_GE(use.useful_share(), 0.85);
}

// Tests `look` on a file that grows and is truncated.
TEST(StepTimeline, TimesOfARunAddUp) {
  const TemporaryFolder folder;
  StepTimeline timeline(folder.path() / "metrics.jsonl");
  const auto write = [&](int last) {
    std::string lines;
    for (int step = 1; step <= last; ++step) {
      lines += fmt::format("{{\"step\":{},\"step_time_s\":0.001,\"checkpoint_stall_s\":0.5}}\n", step);
    }
    folder.write("metrics.jsonl", lines);
    timeline.look();
    std::this_thread::sleep_for(5ms);
  };
  timeline.look();
  EXPECT_EQ(timeline.last_step(), 0);
  write(1);
  const auto begin = Clock::now();
  for (const int step : {2, 3, 4}) write(step);
  const auto killed = Clock::now();
  std::this_thread::sleep_for(20ms);
  const auto ended = Clock::now();
  std::this_thread::sleep_for(20ms);
  write(2);
  EXPECT_EQ(timeline.last_step(), 2);
  for (const int step : {3, 4, 5}) write(step);
  EXPECT_EQ(timeline.last_step(), 5);
  ASSERT_EQ(timeline.undone().size(), 2u);
  EXPECT_EQ(timeline.counting().size(), 5u);
  const TimeUse use = time_use(timeline, {{killed, ended}}, begin, Clock::now());
  EXPECT_NEAR(use.useful_s, 0.004, 1e-9);
  EXPECT_NEAR(use.redone_s, 0.002, 1e-9);
  EXPECT_NEAR(use.ending_s, 0.02, 0.02);
  EXPECT_GE(use.starting_s, 0.02);
  EXPECT_GE(use.cut_off_s, 0.004);
  EXPECT_GT(use.between_steps_s, 0);
}

TEST(StepTimeline, CheckpointsAsYoungAdvises) {
  EXPECT_EQ(steps_between_checkpoints(0.1, 0.1, 0.2, 20), 20);
  EXPECT_EQ(steps_between_checkpoints(0.1, 0.001, 0.95, 20), 10) << "one at a time";
  EXPECT_EQ(steps_between_checkpoints(5, 0.1, 0.2, 20), 1);
}

// Runs as many busy processes as ranks, all of them on half as many processors as ranks.
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
