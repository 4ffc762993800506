// Jobs on two hosts over libfabric: the bits of TCP, and every fault ends as it does over TCP.
#include <dlfcn.h>
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "e2e/hosts_fixture.h"
#include "e2e/network_faults.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr const char* kFabric = "tcp;ofi_rxm";

class HostsFabric : public HostsFixture {
 protected:
  void SetUp() override {
    if (::dlopen("libfabric.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) GTEST_SKIP() << ::dlerror();
    HostsFixture::SetUp();
  }
  std::vector<std::string> train(int64_t max_steps, const std::string& fabric = kFabric,
                                 const std::string& context_size = "1") const {
    return HostsFixture::train(
        max_steps, {"--zero_stage", "3", "--fabric", fabric, "--context_parallel_size", context_size});
  }
  std::vector<std::string> endless() const { return train(1'000'000); }

  // The weights of a run that nothing disturbs.
  std::string weights_of(const std::vector<std::string>& command, int ranks_per_node = 1) {
    HostJob job(hosts_, {.ranks_per_node = ranks_per_node, .command = command});
    if (!job.wait(2 * kStart)) return "";
    for (const int node : {0, 1}) EXPECT_EQ(job.agent(node).result().exit_code, 0) << job.all_output();
    std::string weights = read_file(output() / "model.safetensors");
    fs::remove_all(output());
    return weights;
  }
};

TEST_F(HostsFabric, TrainingHasTheBitsOfTcp) {
  for (const int ranks_per_node : {1, 2}) {
    const std::string expected = weights_of(train(20, "tcp"), ranks_per_node);
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(weights_of(train(20), ranks_per_node) == expected) << ranks_per_node;
  }
  const std::string shared = weights_of(train(20, "tcp", "2"));
  ASSERT_FALSE(shared.empty());
  EXPECT_TRUE(weights_of(train(20, kFabric, "2")) == shared);
}

TEST_F(HostsFabric, KilledRankIsNamedEverywhere) {
  for (const int victim : {0, 1}) {
    HostJob job(hosts_, {.command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    job.send(victim, SIGKILL);
    ASSERT_TRUE(job.wait(kSoon));
    for (const int node : {0, 1}) {
      expect_error(job, node, 75,
                   fmt::format("rank {} on host host{} was killed by signal 9 (SIGKILL)", victim, victim));
    }
    fs::remove_all(output());
  }
}

TEST_F(HostsFabric, StoppedRankIsNamedAfterTheSilence) {
  HostJob job(hosts_, {.command = endless()});
  ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
  job.send(1, SIGSTOP);
  ASSERT_TRUE(job.wait(2 * kSilence + kSoon));
  for (const int node : {0, 1}) expect_error(job, node, 75, HasSubstr("rank 1 on host host1"));
}

TEST_F(HostsFabric, DeadNetworkEndsBothSides) {
  for (const std::string reject : {"-j DROP", "-p tcp -j REJECT --reject-with tcp-reset"}) {
    SCOPED_TRACE(reject);
    HostJob job(hosts_, {.command = endless()});
    ASSERT_TRUE(wait_for_steps(output(), 3, kStart)) << job.all_output();
    const std::string rule = fmt::format("INPUT -s {} {}", Hosts::address(1), reject);
    if (const std::string problem = iptables(0, "-A " + rule); !problem.empty()) GTEST_SKIP() << problem;
    EXPECT_TRUE(job.wait(2 * kSilence + kSoon));
    EXPECT_EQ(iptables(0, "-D " + rule), "");
    for (const int node : {0, 1}) {
      expect_error(job, node, 75, AnyOf(HasSubstr("rank "), HasSubstr("node "), HasSubstr("the store at")));
    }
    fs::remove_all(output());
  }
}

TEST_F(HostsFabric, LostPacketsAndPortScansChangeNoNumber) {
  constexpr int64_t kSteps = 40;
  const std::string expected = weights_of(train(kSteps));
  ASSERT_FALSE(expected.empty());
  for (const int host : {0, 1}) {
    const std::string problem =
        iptables(host, "-A INPUT -p tcp -m statistic --mode random --probability 0.02 -j DROP");
    if (!problem.empty()) GTEST_SKIP() << problem;
  }
  EXPECT_TRUE(weights_of(train(kSteps)) == expected);
  for (const int host : {0, 1}) EXPECT_EQ(iptables(host, "-F INPUT"), "");
  const auto first = hosts_.run(1, [] { scan_ports(Hosts::address(0), 1); });
  const auto second = hosts_.run(0, [] { scan_ports(Hosts::address(1), 2); });
  EXPECT_TRUE(weights_of(train(5 * kSteps)) == weights_of(train(5 * kSteps, "tcp")));
  EXPECT_FALSE(first->has_ended() || second->has_ended());
}

// A machine without it trains over TCP, and says what is missing where another fabric is asked for.
TEST_F(HostsFabric, MissingLibraryIsOneErrorThatNamesThePackage) {
  const std::string empty = tiny_->folder.write("empty", "");
  for (const int host : {0, 1}) {
    const auto process = hosts_.start(
        host, {"sh", "-c",
               "for file in $(ldconfig -p | sed -n 's/.*libfabric.so.1.* => //p'); do mount --bind '" +
                   empty + "' \"$file\" || exit 1; done"});
    ASSERT_TRUE(process->wait(10s) && process->result().exit_code == 0) << process->err();
  }
  {
    HostJob job(hosts_, {.command = endless()});
    ASSERT_TRUE(job.wait(kStart));
    for (const int node : {0, 1}) {
      expect_error(job, node, 78, AllOf(HasSubstr("libfabric1"), HasSubstr("--fabric tcp")));
    }
  }
  EXPECT_FALSE(weights_of(train(3, "tcp")).empty());
}

}  // namespace
}  // namespace tessera
