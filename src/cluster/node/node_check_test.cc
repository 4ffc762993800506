#include "cluster/node/node_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/clock.h"
#include "cluster/storage/folder_trial.h"
#include "comm/socket/tcp_socket.h"
#include "expect_error.h"
#include "fake_machine.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TrialReport good_trial() {
  TrialReport report;
  report.numbers = {{"free_bytes", 50e9},
                    {"total_bytes", 60e9},
                    {"total_inodes", 1e6},
                    {"free_inodes", 1e5},
                    {"fsync_ms", 2}};
  report.is_complete = true;
  return report;
}

TEST(HealthOf, FailedOutweighsUnknownAndIgnoredChecksDoNotCount) {
  const Check ok = {.name = "a"}, advice = {.name = "b", .outcome = CheckOutcome::kAdvice};
  const Check failed = {.name = "c", .outcome = CheckOutcome::kFailed}, blind = unknown("d", ""),
              none = skipped("e", "");
  EXPECT_EQ(health_of({ok, advice, none}), Health::kHealthy);
  EXPECT_EQ(health_of({ok, blind}), Health::kUnknown);
  EXPECT_EQ(health_of({blind, failed}), Health::kUnhealthy);
  EXPECT_EQ(health_of({ok, failed}, {"c"}), Health::kHealthy);
  EXPECT_EQ(health_of({blind, failed}, {"c"}), Health::kUnknown);
}

TEST(HealthOf, JsonFollowsTheContract) {
  const Check failed = at_most("disk", 3, 2, "ms", "slow");
  EXPECT_EQ(health_json({failed, skipped("peer", "none"), {.name = "x", .message = "fine"}}).dump(),
            R"({"healthy":false,"checks":[)"
            R"({"name":"disk","ok":false,"value":3.0,"limit":2.0,"unit":"ms","message":"slow"},)"
            R"({"name":"peer","ok":null,"value":null,"limit":null,"unit":"","message":"none"},)"
            R"({"name":"x","ok":true,"value":null,"limit":null,"unit":"","message":"fine"}]})");
  EXPECT_EQ(health_json({unknown("x", "y")})["healthy"], nullptr);
  EXPECT_EQ(health_json({failed}, {"disk"})["healthy"], true);
  EXPECT_EQ(health_json({failed}, {"disk"})["checks"][0]["ignored"], true);
}

TEST(Instructions, FaultsAndMissingOnesFail) {
  EXPECT_EQ(check_instructions("amx_bf16", "", "", "").outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_instructions("amx_bf16", "amx_bf16", "", "").outcome, CheckOutcome::kOk);
  const Check refused = check_instructions("avx2", "amx_bf16", "the processor lacks it", "");
  EXPECT_EQ(refused.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(refused.message,
              HasSubstr("amx_bf16 is required: the processor lacks it; the best that works is avx2"));
  EXPECT_EQ(check_instructions("avx2", "", "", "amx_bf16: a wrong result").outcome, CheckOutcome::kFailed);
}

TEST(DiskCheck, EveryWayToFailIsNamed) {
  const auto judge = [](const TrialReport& report, bool asked = true) {
    return check_disk(report, "/x", asked);
  };
  EXPECT_EQ(health_of(judge(good_trial())), Health::kHealthy);
  TrialReport report = good_trial();
  report.timed_out = true;
  report.is_complete = false;
  report.last_stage = "write";
  EXPECT_THAT(judge(report)[0].message, HasSubstr("/x: no answer while in stage write"));
  EXPECT_EQ(judge(report)[0].outcome, CheckOutcome::kFailed);
  report = good_trial();
  report.numbers["fsync_ms"] = 1500;
  EXPECT_THAT(judge(report)[0].message, HasSubstr("fsync 1.5e+03 ms"));
  EXPECT_EQ(judge(report)[0].outcome, CheckOutcome::kFailed);
  report = good_trial();
  report.texts["wrong"] = "bytes 0 to 4 are not what was written";
  EXPECT_EQ(judge(report)[0].outcome, CheckOutcome::kFailed);
  report = good_trial();
  report.texts["error"] = "create: Read-only file system";
  report.last_stage = "create";
  EXPECT_EQ(judge(report)[0].outcome, CheckOutcome::kFailed);
  EXPECT_EQ(judge(report, /*asked=*/false)[0].outcome, CheckOutcome::kSkipped)
      << "a read-only root is no fault";
  report = good_trial();
  report.is_complete = false;
  EXPECT_EQ(judge(report)[0].outcome, CheckOutcome::kUnknown);
  report = good_trial();
  report.numbers["free_bytes"] = 0.9e9;
  EXPECT_EQ(judge(report)[1].outcome, CheckOutcome::kFailed);
  report = good_trial();
  report.numbers["free_inodes"] = 5;
  EXPECT_THAT(judge(report)[1].message, HasSubstr("hardly an inode"));
  EXPECT_EQ(judge(report)[1].outcome, CheckOutcome::kFailed);
  report.numbers["total_inodes"] = report.numbers["free_inodes"] = 0;  // btrfs
  EXPECT_EQ(judge(report)[1].outcome, CheckOutcome::kOk);
}

TEST(Peers, AddressesArePartedAndMistakesNamed) {
  EXPECT_EQ(parse_peer("host1:29500").host, "host1");
  EXPECT_EQ(parse_peer("host1:29500").port, 29500);
  EXPECT_EQ(parse_peer("[fd00::1]:80").host, "fd00::1");
  for (const char* text : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x"}) {
    expect_error(ExitCode::kUsage, {"--peers: expected HOST:PORT"}, [&] { parse_peer(text); });
  }
}

TEST(Peers, ThoseThatAnswerAndThoseThatRefuseAreThere) {
  const UniqueFd listener = listen_on("127.0.0.1", 0);
  const int open = local_port(listener);
  int closed = 0;
  { closed = local_port(listen_on("127.0.0.1", 0)); }
  const std::vector<Check> checks = check_peers({{"127.0.0.1", open}, {"127.0.0.1", closed}}, 5);
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[0].outcome, CheckOutcome::kOk) << checks[0].message;
  EXPECT_EQ(checks[1].outcome, CheckOutcome::kOk) << checks[1].message;
  EXPECT_THAT(checks[1].message, HasSubstr("nothing listens on the port yet"));
}

// Linux drops connection attempts beyond the backlog of a program that does not accept any.
TEST(Peers, ThoseThatDoNotAnswerFailInTime) {
  const UniqueFd listener = listen_on("127.0.0.1", 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const int port = local_port(listener);
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(begin_connect(parse_address("127.0.0.1", port)));
  const Stopwatch stopwatch;
  const std::vector<Check> checks = check_peers({{"127.0.0.1", port}, {"no-such-host.invalid", 9}}, 0.5);
  EXPECT_LT(stopwatch.seconds(), 3);
  for (const Check& check : checks) EXPECT_EQ(check.outcome, CheckOutcome::kFailed) << check.message;
  EXPECT_THAT(checks[0].message, HasSubstr("does not answer: Connection timed out"));
}

TEST(NodeCheck, PassiveCheckReadsTheGivenRootOnly) {
  FakeMachine machine;
  machine.write("sys/devices/system/edac/mc/mc0/ue_count", "1");
  machine.write("proc/interrupts", "MCE: 0\n");
  const std::vector<Check> checks = check_node({.is_passive = true,
                                                .figures = {},
                                                .peers = {},
                                                .folder = {},
                                                .root = machine.root(),
                                                .nvml_library = {}});
  std::set<std::string> failed, names;
  for (const Check& check : checks) {
    names.insert(check.name);
    if (check.outcome == CheckOutcome::kFailed && check.name != "clock") failed.insert(check.name);
  }
  EXPECT_EQ(failed, std::set<std::string>{"memory_errors"});
  EXPECT_FALSE(names.contains("compute"));
  EXPECT_FALSE(names.contains("disk"));
}

TEST(NodeCheck, FullCheckEndsInTimeAndMeasures) {
  const FakeMachine machine;
  const TestFolder folder;
  const Stopwatch stopwatch;
  const FleetFigures figures = {.num_nodes = 3, .medians = {{"compute", 1e9}, {"memory_bandwidth", 1e9}}};
  const std::vector<Check> checks = check_node({.seconds = 4,
                                                .figures = figures,
                                                .peers = {},
                                                .folder = folder.path(),
                                                .root = machine.root(),
                                                .nvml_library = {}});
  EXPECT_LT(stopwatch.seconds(), 15);
  std::set<std::string> names;
  for (const Check& check : checks) {
    names.insert(check.name);
    if (check.name == "compute") {
      EXPECT_EQ(check.outcome == CheckOutcome::kFailed, check.value.has_value()) << check.message;
    }
    if (check.name == "disk") {
      EXPECT_EQ(check.outcome, CheckOutcome::kOk) << check.message;
    }
  }
  for (const char* name :
       {"product", "compute", "slow_cores", "memory_bandwidth", "memory_pattern", "disk"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(folder.names(), std::set<std::string>{}) << "files were left";
}

}  // namespace
}  // namespace tessera
