// Networks that lose, corrupt or delay data, and unauthenticated peers on them: a job is either not affected
// at all or ends everywhere with one error, never with different numbers.
#include <fmt/format.h>

#include <filesystem>
#include <sstream>
#include <thread>

#include "e2e/hosts_fixture.h"
#include "e2e/network_faults.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class HostsNetwork : public HostsFixture {
 protected:
  static std::vector<std::string> more() { return {"--zero_stage", "3", "--lr_scheduler_type", "constant"}; }
  std::vector<std::string> train(int64_t max_steps) const { return HostsFixture::train(max_steps, more()); }
  std::vector<std::string> endless() const { return HostsFixture::endless(more()); }

  // Loss lines of metrics.jsonl: `"loss": ...` by step.
  std::vector<std::string> losses() const {
    std::vector<std::string> result;
    std::istringstream lines(read_file(output() / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("\"loss\":");
      if (at != std::string::npos) result.push_back(line.substr(at, line.find(',', at) - at));
    }
    return result;
  }

  // The trained weights of an undisturbed run.
  std::string undisturbed_weights(int64_t steps) {
    HostJob job(hosts_, {.command = train(steps)});
    if (!job.wait(kStart)) return "";
    std::string weights = read_file(output() / "model.safetensors");
    fs::remove_all(output());
    return weights;
  }
};

// Packets from `host` arrive; packets to it do not.
TEST_F(HostsNetwork, OneWayDropEndsBothSides) {
  for (const int host : {0, 1}) {
    SCOPED_TRACE(host);
    HostJob job(hosts_, {.command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    const std::string rule = fmt::format("INPUT -s {} -j DROP", Hosts::address(1 - host));
    if (const std::string problem = iptables(host, "-A " + rule); !problem.empty()) GTEST_SKIP() << problem;
    EXPECT_TRUE(job.wait(2 * kSilence + kSoon));
    EXPECT_EQ(iptables(host, "-D " + rule), "");
    for (const int node : {0, 1}) {
      expect_error(job, node, 75, AnyOf(HasSubstr("silent for 5.0 s"), HasSubstr("ended without a word")));
    }
    fs::remove_all(output());
  }
}

// A firewall in between that forgets its connections: every packet is answered with a reset.
TEST_F(HostsNetwork, ResetConnectionsEndBothSides) {
  for (const int host : {0, 1}) {
    SCOPED_TRACE(host);
    HostJob job(hosts_, {.command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    const std::string rule =
        fmt::format("INPUT -p tcp -s {} -j REJECT --reject-with tcp-reset", Hosts::address(1 - host));
    if (const std::string problem = iptables(host, "-A " + rule); !problem.empty()) GTEST_SKIP() << problem;
    EXPECT_TRUE(job.wait(2 * kSilence + kSoon));
    EXPECT_EQ(iptables(host, "-D " + rule), "");
    for (const int node : {0, 1}) {
      expect_error(job, node, 75, AnyOf(HasSubstr("rank "), HasSubstr("node "), HasSubstr("the store at")));
    }
    fs::remove_all(output());
  }
}

TEST_F(HostsNetwork, LostPacketsChangeNoNumber) {
  constexpr int64_t kSteps = 40;
  const std::string expected = undisturbed_weights(kSteps);
  ASSERT_FALSE(expected.empty());
  for (const double share : {0.01, 0.05}) {
    for (const int host : {0, 1}) {
      const std::string problem = iptables(
          host, fmt::format("-A INPUT -p tcp -m statistic --mode random --probability {} -j DROP", share));
      if (!problem.empty()) GTEST_SKIP() << problem;
    }
    HostJob job(hosts_, {.command = train(kSteps)});
    ASSERT_TRUE(job.wait(2 * kStart));
    for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
    EXPECT_TRUE(read_file(output() / "model.safetensors") == expected) << share;
    for (const int host : {0, 1}) EXPECT_EQ(iptables(host, "-F INPUT"), "");
    fs::remove_all(output());
  }
}

// Corrupted between the ranks; the store's connections are left alone.
TEST_F(HostsNetwork, DamagedBytesAreFoundAndNeverSummed) {
  {
    HostJob job(hosts_, {.command = train(60)});
    ASSERT_TRUE(job.wait(kStart));
  }
  const std::vector<std::string> expected = losses();
  ASSERT_GE(expected.size(), 60u);
  fs::remove_all(output());
  constexpr int kPort = 7777, kMark = 7;
  for (const int host : {0, 1}) {
    for (const std::string& rule : {fmt::format("-t nat -A OUTPUT -m mark --mark {} -j RETURN", kMark),
                                    std::string("-t nat -A OUTPUT -p tcp --dport 29500 -j RETURN"),
                                    fmt::format("-t nat -A OUTPUT -p tcp -d {} -j REDIRECT --to-ports {}",
                                                Hosts::address(1 - host), kPort)}) {
      if (const std::string problem = iptables(host, rule); !problem.empty()) GTEST_SKIP() << problem;
    }
  }
  for (const Damage damage : {Damage::kFlippedBit, Damage::kMissingBytes, Damage::kDoubledBytes}) {
    for (const uint64_t seed : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("damage {}, seed {}", static_cast<int>(damage), seed));
      const DamagingProxy proxy = {kPort, kMark, seed, static_cast<int64_t>(seed) * 400'000, damage};
      const auto first = hosts_.run(0, [proxy] { run_damaging_proxy(proxy); });
      const auto second = hosts_.run(1, [proxy] { run_damaging_proxy(proxy); });
      HostJob job(hosts_, {.command = endless()});
      ASSERT_TRUE(job.wait(kStart));
      EXPECT_FALSE(first->has_ended()) << first->err();
      EXPECT_FALSE(second->has_ended()) << second->err();
      for (const int node : {0, 1}) {
        expect_error(job, node, 75,
                     AnyOf(HasSubstr("arrived corrupted: CRC32C"), HasSubstr("a corrupted message")));
      }
      const std::vector<std::string> found = losses();
      ASSERT_LE(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], expected[i]) << "step " << i;
      fs::remove_all(output());
    }
  }
}

TEST_F(HostsNetwork, PortScansAndGarbageChangeNothing) {
  constexpr int64_t kSteps = 300;
  const std::string expected = undisturbed_weights(kSteps);
  ASSERT_FALSE(expected.empty());
  const auto first = hosts_.run(1, [] { scan_ports(Hosts::address(0), 1); });
  const auto second = hosts_.run(0, [] { scan_ports(Hosts::address(1), 2); });
  HostJob job(hosts_, {.command = train(kSteps)});
  ASSERT_TRUE(job.wait(2 * kStart));
  EXPECT_FALSE(first->has_ended());
  EXPECT_FALSE(second->has_ended());
  for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
  EXPECT_TRUE(read_file(output() / "model.safetensors") == expected);
}

TEST_F(HostsNetwork, WhoWaitsSaysForWhomAfterTenSeconds) {
  HostJob job(hosts_, {.command = train(3), .nodes = {0}});
  const auto begin = Clock::now();
  EXPECT_TRUE(job.agent(0).wait_for_output(
      "node 1 of 2 has not joined after 10 s; joined: node 0 on host host0; check", 10s + kSoon))
      << job.all_output();
  EXPECT_GE(Clock::now() - begin, 9s);
  job.start(1);
  ASSERT_TRUE(job.wait(kStart));
  for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
  EXPECT_THAT(job.agent(1).err(), Not(HasSubstr("not joined")));
}

// A name server that accepts queries but never answers: the system's resolver would wait for minutes.
TEST_F(HostsNetwork, SilentNameServerDoesNotOutliveTheDeadline) {
  const std::string resolv =
      tiny_->folder.write("resolv.conf", "nameserver 10.77.0.99\noptions timeout:30 attempts:5\n");
  for (const int host : {0, 1}) {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"mount", "--bind", resolv, "/etc/resolv.conf"},
             {"ip", "neigh", "replace", "10.77.0.99", "lladdr", "02:00:00:00:00:99", "dev", "eth0"}}) {
      const auto process = hosts_.start(host, command);
      ASSERT_TRUE(process->wait(10s) && process->result().exit_code == 0) << process->err();
    }
  }
  const std::vector<std::string> flags = {"--rdzv_conf", "timeout=3", "--rdzv_endpoint",
                                          "head.example:29500"};
  HostJob job(hosts_, {.launch_flags = flags, .command = endless(), .nodes = {1}});
  ASSERT_TRUE(job.wait(3s + kSoon));
  expect_error(job, 1, 75, AllOf(HasSubstr("cannot resolve 'head.example'"), HasSubstr("name servers")));
  // Node 0 looks up its own name to determine where to listen.
  HostJob first(hosts_, {.launch_flags = flags, .command = endless(), .nodes = {0}});
  ASSERT_TRUE(first.wait(2 * 3s + kSoon));
  expect_error(first, 0, 75, HasSubstr("node 1 of 2 has not joined after 3 s"));
}

}  // namespace
}  // namespace tessera
