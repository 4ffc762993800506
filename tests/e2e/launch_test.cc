// Runs tessera launch with small programs as ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using Clock = std::chrono::steady_clock;

std::vector<std::string> shell_ranks(int num_ranks, const std::string& script,
                                     const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"launch", "--nproc_per_node", std::to_string(num_ranks)};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"--", "/bin/sh", "-c", script});
  return arguments;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A zombie also counts as gone: nobody may be left to wait for it.
bool is_gone(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || stat[name_end + 2] == 'Z' || stat[name_end + 2] == 'X';
}

// Process ids that ranks printed as "pid N".
std::vector<pid_t> printed_pids(const std::string& out) {
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(out)) {
    const size_t at = line.find("pid ");
    if (at != std::string::npos) pids.push_back(static_cast<pid_t>(std::stol(line.substr(at + 4))));
  }
  return pids;
}

// Calls act(agent, pids of the ranks) once, when all ranks have printed theirs.
std::function<void(pid_t, const std::string&, const std::string&)> when_started(
    size_t num_ranks, std::function<void(pid_t, const std::vector<pid_t>&)> act) {
  return [num_ranks, act, done = false](pid_t agent, const std::string& out, const std::string&) mutable {
    const std::vector<pid_t> pids = printed_pids(out);
    if (done || !out.ends_with("\n") || pids.size() < num_ranks) return;
    done = true;
    act(agent, pids);
  };
}

TEST(Launch, RanksKnowWhoTheyAreAndOnlyRankZeroIsPlain) {
  const ProcessResult result = run_tessera(
      shell_ranks(3, "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE; echo late >&2"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("0 of 3, 0 of 3", "[rank 1] 1 of 3, 1 of 3", "[rank 2] 2 of 3, 2 of 3"));
  EXPECT_THAT(result.err, HasSubstr("[rank 2] late\n"));
}

TEST(Launch, LinesAreNeverMixed) {
  const ProcessResult result =
      run_tessera(shell_ranks(4,
                              "i=0; while [ $i -lt 300 ]; do printf 'a%s' $RANK; printf 'b%s\\n' $RANK; "
                              "i=$((i+1)); done; printf end"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, int> count;
  for (const std::string& line : lines_of(result.out)) ++count[line];
  const std::map<std::string, int> expected = {
      {"a0b0", 300}, {"[rank 1] a1b1", 300}, {"[rank 2] a2b2", 300}, {"[rank 3] a3b3", 300},
      {"end", 1},    {"[rank 1] end", 1},    {"[rank 2] end", 1},    {"[rank 3] end", 1}};
  EXPECT_EQ(count, expected);
}

TEST(Launch, FailedRankEndsTheOthersAndItsExitCodePassesThrough) {
  for (const int code : {1, 64, 66, 74, 75, 78, 79}) {
    const auto start = Clock::now();
    const ProcessResult result =
        run_tessera(shell_ranks(3, "[ $RANK = 1 ] && exit " + std::to_string(code) + "; exec sleep 60"));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_LT(seconds_since(start), 10);
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_THAT(result.errors()[0],
                testing::MatchesRegex("rank 1 on host .* ended with exit code " + std::to_string(code)));
  }
}

TEST(Launch, ErrorOfACommandIsShownOnce) {
  const ProcessResult result = run_tessera({"launch", "--nproc_per_node", "3", "init", "--preset", "15m",
                                            "--tokenizer", "/nowhere/at/all", "--output", "out"});
  EXPECT_EQ(result.exit_code, 66) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0], testing::StartsWith("/nowhere/at/all: "));
  EXPECT_THAT(result.err, Not(HasSubstr("[rank")));
}

TEST(Launch, KilledRankIsNamedAndTheOthersEnd) {
  const auto start = Clock::now();
  pid_t other = 0;
  const ProcessResult result =
      run_tessera(shell_ranks(2, "echo pid $$; exec sleep 60"),
                  {.on_output = when_started(2, [&](pid_t, const std::vector<pid_t>& pids) {
                     other = pids[0];
                     kill(pids[1], SIGKILL);
                   })});
  EXPECT_EQ(result.exit_code, 75) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0],
              testing::MatchesRegex("rank [01] on host .* was killed by signal 9 \\(SIGKILL\\)"));
  EXPECT_TRUE(is_gone(other));
  EXPECT_LT(seconds_since(start), 10);
}

TEST(Launch, RankThatIgnoresSigtermIsKilledASecondAfterAFailure) {
  const auto start = Clock::now();
  const ProcessResult result = run_tessera(
      shell_ranks(2, "trap '' TERM; [ $RANK = 1 ] && sleep 0.2 && exit 3; sleep 60 & wait; sleep 60"));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_GE(seconds_since(start), 1);
  EXPECT_LT(seconds_since(start), 15);
}

TEST(Launch, RanksGoWhenTheAgentIsKilled) {
  std::vector<pid_t> ranks;
  const ProcessResult result =
      run_tessera(shell_ranks(2, "echo pid $$; exec sleep 60"),
                  {.on_output = when_started(2, [&](pid_t agent, const std::vector<pid_t>& pids) {
                     ranks = pids;
                     kill(agent, SIGKILL);
                   })});
  EXPECT_EQ(result.signal, SIGKILL);
  ASSERT_EQ(ranks.size(), 2u);
  for (const pid_t pid : ranks) {
    for (int i = 0; i < 500 && !is_gone(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(is_gone(pid));
  }
}

TEST(Launch, SignalsArePassedOnOnceAndEndTheAgentToo) {
  for (const auto& [number, name] :
       std::map<int, std::string>{{SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}}) {
    const std::string script = "trap 'echo got " + name + "; trap - " + name + "; kill -" + name + " $$' " +
                               name + "; echo pid $$; while :; do sleep 0.05; done";
    const ProcessResult result = run_tessera(
        shell_ranks(2, script), {.on_output = when_started(2, [n = number](pid_t agent, const auto&) {
                                   kill(agent, n);
                                   if (n != SIGINT) kill(agent, n);  // must not be forwarded again
                                 })});
    EXPECT_EQ(result.signal, number) << result.exit_code << result.err;
    EXPECT_EQ(result.errors().size(), 0u) << result.err;
    const std::vector<std::string> lines = lines_of(result.out);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "got " + name), 1) << result.out;
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "[rank 1] got " + name), 1) << result.out;
  }
}

TEST(Launch, RanksThatEndWellAfterASignalEndTheLaunchWell) {
  const ProcessResult result =
      run_tessera(shell_ranks(2, "trap 'exit 0' TERM; echo pid $$; while :; do sleep 0.05; done"),
                  {.on_output = when_started(2, [](pid_t agent, const auto&) { kill(agent, SIGTERM); })});
  EXPECT_EQ(result.exit_code, 0) << result.signal << result.err;
}

TEST(Launch, GraceIsLimitedAndASecondInterruptEndsAtOnce) {
  const std::string stubborn = "trap '' TERM INT; echo pid $$; while :; do sleep 0.05; done";
  auto start = Clock::now();
  ProcessResult result =
      run_tessera(shell_ranks(2, stubborn, {"--termination_grace_s", "0.5"}),
                  {.on_output = when_started(2, [](pid_t agent, const auto&) { kill(agent, SIGTERM); })});
  EXPECT_EQ(result.signal, SIGTERM) << result.err;
  EXPECT_GE(seconds_since(start), 0.5);
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_THAT(result.err, HasSubstr("killed"));
  start = Clock::now();
  result =
      run_tessera(shell_ranks(2, stubborn), {.on_output = when_started(2, [](pid_t agent, const auto&) {
                                               kill(agent, SIGINT);
                                               std::this_thread::sleep_for(std::chrono::milliseconds(200));
                                               kill(agent, SIGINT);
                                             })});
  EXPECT_EQ(result.signal, SIGINT) << result.err;
  EXPECT_LT(seconds_since(start), 10);
}

// To a controller that counts crashes, 75 would be the failure of somebody else.
TEST(Launch, UnderAControllerACrashHasItsOwnCode) {
  const std::string crash = "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60";
  EXPECT_EQ(run_tessera(shell_ranks(2, crash)).exit_code, 75);
  const ProcessResult result =
      run_tessera(shell_ranks(2, crash, {"--under_controller", "--max_restarts", "1"}));
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1"));
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0], HasSubstr("SIGSEGV"));
  const auto start = Clock::now();
  EXPECT_EQ(run_tessera(shell_ranks(1, "exit 75", {"--under_controller"})).exit_code, 75);
  EXPECT_GE(seconds_since(start), 3) << "the cause comes first";
}

TEST(Launch, AllRanksStartAgainAfterAFailureThatLeavesHope) {
  const std::string script =
      "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 75; exec sleep 60";
  ProcessResult result = run_tessera(shell_ranks(2, script, {"--max_restarts", "3"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out), testing::IsSupersetOf({"try 2 of 3", "[rank 1] try 2 of 3"}));
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 3"));
  result = run_tessera(shell_ranks(2, script, {"--max_restarts", "1"}));
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(result.errors().size(), 1u);
  result = run_tessera(shell_ranks(2, "echo try; exit 78", {"--max_restarts", "3"}));
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.err, Not(HasSubstr("restart")));
}

TEST(Launch, LogFilesAreTorchruns) {
  const TemporaryFolder folder;
  const ProcessResult result = run_tessera(
      shell_ranks(2, "echo out; echo err >&2",
                  {"--log_dir", folder / "logs", "--rdzv_id", "a/b", "--redirects", "0:3", "--tee", "1:1"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 1] out\n");
  EXPECT_THAT(result.err, HasSubstr("[rank 1] err\n"));
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(folder / "logs")) runs.push_back(entry.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_TRUE(runs[0].filename().string().starts_with("a_b_"));
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stdout.log"), "out\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stderr.log"), "err\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/1/stdout.log"), "out\n");
  EXPECT_FALSE(fs::exists(runs[0] / "attempt_0/1/stderr.log"));
}

// The program itself may open more sockets than usual; other programs keep their limit, which select() relies
// on.
TEST(Launch, OpenFilesAreLimitedForOtherProgramsOnly) {
  const ProcessOptions options = {.open_files = 256};
  const ProcessResult launch = run_tessera(shell_ranks(1, "ulimit -n"), options);
  EXPECT_EQ(launch.out, "256\n") << launch.err;
  const ProcessResult doctor = run_tessera({"doctor"}, options);
  EXPECT_THAT(doctor.out, Not(HasSubstr("256 a process"))) << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr(" a process; node 0 needs one for each rank"));
}

TEST(Launch, PetVariablesAreRead) {
  std::vector<std::string> arguments = {"launch", "--", "/bin/sh", "-c", "echo $RANK $MASTER_ADDR"};
  const ProcessResult result = run_tessera(
      arguments, {.environment = {"PET_NPROC_PER_NODE=3", "PET_NNODES=1", "PET_MASTER_ADDR=localhost"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // A single node needs no name, which might not be in the DNS yet.
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("0 127.0.0.1", "[rank 1] 1 127.0.0.1", "[rank 2] 2 127.0.0.1"));
}

// As torch.distributed does where no agent's store has its protocol: rank 0 listens, the others connect.
TEST(Launch, MasterPortIsFreeForAProgramsOwnStore) {
  const std::string script =
      "import os, socket, time\n"
      "at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
      "assert os.environ['TORCHELASTIC_USE_AGENT_STORE'] == 'False'\n"
      "if os.environ['RANK'] == '0':\n"
      "  server = socket.create_server(at)\n"
      "  for i in range(2): server.accept()[0].sendall(b'welcome')\n"
      "else:\n"
      "  for i in range(100):\n"
      "    try: peer = socket.create_connection(at); break\n"
      "    except OSError: time.sleep(0.1)\n"
      "  print(peer.recv(7).decode())\n";
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--rdzv_endpoint", "localhost:0"}}) {
    std::vector<std::string> arguments = {"launch", "--nproc_per_node", "3"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--", "/usr/bin/python3", "-c", script});
    const ProcessResult result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[rank 1] welcome", "[rank 2] welcome"));
  }
}

TEST(Launch, WrongUseIsOneLine) {
  const auto expect = [](const std::vector<std::string>& arguments, int code, const std::string& message) {
    const ProcessResult result = run_tessera(arguments);
    EXPECT_EQ(result.exit_code, code) << result.err;
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_THAT(result.errors()[0], HasSubstr(message));
  };
  expect({"launch"}, 64, "missing argument COMMAND");
  expect({"launch", "--nproc", "2", "train"}, 64, "unknown flag '--nproc'");
  expect({"launch", "--nnodes", "1:2", "train"}, 64, "--node_rank");
  expect({"launch", "--", "/nowhere/program"}, 66, "does not exist");
  expect({"launch", "trian"}, 64, "did you mean 'train'?");
  expect({"launch", "train.py"}, 64, "tessera launch -- python3 train.py");
  expect({"launch", "--nnodes", "2", "--node_rank", "0", "--rdzv_endpoint", "::1:29611", "train"}, 64,
         "written [::1]:29500");
  const TemporaryFolder folder;
  const std::string no_program = folder.write("x", "no program");
  fs::permissions(no_program, fs::perms::owner_all);
  expect({"launch", "--", no_program}, 66, "cannot be executed");
}

}  // namespace
}  // namespace tessera
