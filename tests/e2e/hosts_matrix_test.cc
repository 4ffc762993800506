// `tessera bench network` on hosts of which one link or one interface is slow.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/host_job.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kHosts = 3;
constexpr std::chrono::seconds kLimit{60};

class HostsMatrix : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << hosts_.problem();
  }

  // Limits the host's sending to 50 Mbit/s; returns "" or the problem.
  std::string slow_down(int host) {
    return tc(host, "qdisc add dev eth0 root tbf rate 50mbit burst 64kb latency 50ms");
  }
  // Only what it sends to one other host is.
  std::string slow_down(int host, int to) {
    for (const std::string& command :
         {std::string("qdisc add dev eth0 root handle 1: htb default 1"),
          std::string("class add dev eth0 parent 1: classid 1:1 htb rate 100gbit"),
          std::string("class add dev eth0 parent 1: classid 1:2 htb rate 50mbit burst 64kb"),
          fmt::format("filter add dev eth0 parent 1: protocol ip u32 match ip dst {}/32 flowid 1:2",
                      Hosts::address(to))}) {
      if (const std::string problem = tc(host, command); !problem.empty()) return problem;
    }
    return "";
  }

  HostJob job(const std::vector<std::string>& flags) {
    std::vector<std::string> command = {"bench", "network"};
    command.insert(command.end(), flags.begin(), flags.end());
    return HostJob(hosts_, {.num_nodes = kHosts, .command = command});
  }
  nlohmann::json result_of(HostJob& job) {
    EXPECT_TRUE(job.wait(kLimit));
    for (int node = 0; node < kHosts; ++node)
      EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
    return nlohmann::json::parse(job.agent(0).out(), nullptr, /*allow_exceptions=*/false);
  }

  Hosts hosts_{kHosts};

 private:
  std::string tc(int host, const std::string& command) {
    std::vector<std::string> argv = {"tc"};
    std::istringstream words(command);
    for (std::string word; words >> word;) argv.push_back(word);
    const auto process = hosts_.start(host, argv);
    if (process->wait(10s) && process->result().exit_code == 0) return "";
    return fmt::format("tc {}: {}", command, process->err());
  }
};

// All hosts share the processors of this machine, so only large differences mean anything.
const std::vector<std::string> kQuick = {"--seconds", "0.1", "--min_share", "0.1", "--json"};

TEST_F(HostsMatrix, SoundNetworkHasAFigureForEveryLink) {
  HostJob run = job(kQuick);
  const nlohmann::json result = result_of(run);
  ASSERT_TRUE(result.is_object()) << run.all_output();
  EXPECT_EQ(result["hosts"], nlohmann::json({"host0", "host1", "host2"}));
  for (const char* figure : {"gbit_per_s", "tcp_gbit_per_s", "latency_us"}) {
    for (size_t from = 0; from < kHosts; ++from) {
      for (size_t to = 0; to < kHosts; ++to) {
        EXPECT_EQ(result[figure][from][to].is_number(), from != to) << figure << " " << from << " " << to;
      }
    }
  }
}

TEST_F(HostsMatrix, SlowLinkIsNamedAndNoOther) {
  if (const std::string problem = slow_down(0, 2); !problem.empty()) GTEST_SKIP() << problem;
  HostJob run = job(kQuick);
  const nlohmann::json result = result_of(run);
  ASSERT_TRUE(result.is_object()) << run.all_output();
  std::vector<nlohmann::json> slow;
  for (const nlohmann::json& finding : result["findings"]) {
    if (finding["kind"] == "slow_link") slow.push_back(finding);
    EXPECT_NE(finding["kind"], "slow_node");
  }
  ASSERT_EQ(slow.size(), 1u) << result;
  EXPECT_EQ(slow[0]["from"], 0);
  EXPECT_EQ(slow[0]["to"], 2);
  EXPECT_LT(slow[0]["value"].get<double>(), 0.2);
}

TEST_F(HostsMatrix, DifferentLimitsEndTheJobBeforeItMeasures) {
  HostJob run(
      hosts_,
      {.num_nodes = kHosts, .command_of_node = [](int node) {
         return std::vector<std::string>{"bench", "network", "--min_share", node == 0 ? "0.5" : "0.6"};
       }});
  ASSERT_TRUE(run.wait(kLimit));
  for (int node = 0; node < kHosts; ++node) {
    EXPECT_EQ(run.agent(node).result().exit_code, 78) << run.all_output();
    EXPECT_THAT(run.agent(node).err(), HasSubstr("min_share"));
  }
}

TEST_F(HostsMatrix, PreflightEndsEveryNodeWithTheSlowNodesName) {
  {
    HostJob run = job({"--preflight", "--min_share", "0.02"});
    ASSERT_TRUE(run.wait(kLimit));
    for (int node = 0; node < kHosts; ++node)
      EXPECT_EQ(run.agent(node).result().exit_code, 0) << run.all_output();
  }
  if (const std::string problem = slow_down(1); !problem.empty()) GTEST_SKIP() << problem;
  HostJob run = job({"--preflight", "--min_share", "0.1"});
  ASSERT_TRUE(run.wait(kLimit));
  for (int node = 0; node < kHosts; ++node) {
    EXPECT_EQ(run.agent(node).result().exit_code, 75) << run.all_output();
    ASSERT_EQ(run.agent(node).result().errors().size(), 1u) << run.all_output();
    EXPECT_THAT(run.agent(node).result().errors()[0],
                HasSubstr("node 1 (host1) sends to most others with 0.0"));
  }
}

}  // namespace
}  // namespace tessera
