// Tests what doctor reports about ranks, with fake machines.
#include "cli/doctor/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/web/two_sockets.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<InterfaceAddress> kTwoInterfaces = {
    {.interface = "lo", .address = "127.0.0.1", .is_loopback = true},
    {.interface = "eth0", .address = "10.0.0.2"},
    {.interface = "eth1", .address = "10.1.0.2"}};

std::string value_of(const RankFindings& findings, const std::string& name) {
  for (const auto& [row, value] : rank_rows(findings)) {
    if (row == name) return value;
  }
  ADD_FAILURE() << "no row " << name;
  return "";
}

class DoctorRanks : public testing::Test {
 protected:
  void SetUp() override { unsetenv("GLOO_SOCKET_IFNAME"); }
  void TearDown() override { unsetenv("GLOO_SOCKET_IFNAME"); }
};

TEST_F(DoctorRanks, AutoIsARankForEachNumaNode) {
  const RankFindings findings = examine_ranks(two_sockets(3, false), kTwoInterfaces);
  EXPECT_EQ(findings.auto_ranks, 2);
  EXPECT_EQ(findings.threads_per_rank, 3);
  EXPECT_EQ(value_of(findings, "nproc_per_node auto"), "2 ranks, one for each NUMA node, 3 threads each");
}

TEST_F(DoctorRanks, TheAddressForOthersIsNotLoopback) {
  const RankFindings findings = examine_ranks(two_sockets(3, false), kTwoInterfaces);
  EXPECT_THAT(value_of(findings, "interfaces"), HasSubstr("lo 127.0.0.1, eth0 10.0.0.2, eth1 10.1.0.2"));
  EXPECT_THAT(value_of(findings, "address for others"),
              AllOf(HasSubstr("10.0.0.2 (eth0)"), HasSubstr("--interface")));
  EXPECT_EQ(ranks_json(findings).at("address"), "10.0.0.2");
}

TEST_F(DoctorRanks, TheVariableOfGlooChoosesTheInterface) {
  setenv("GLOO_SOCKET_IFNAME", "eth1", 1);
  RankFindings findings = examine_ranks(two_sockets(3, false), kTwoInterfaces);
  EXPECT_EQ(value_of(findings, "address for others"), "10.1.0.2 (eth1), from GLOO_SOCKET_IFNAME");
  setenv("GLOO_SOCKET_IFNAME", "ib0", 1);
  findings = examine_ranks(two_sockets(3, false), kTwoInterfaces);
  EXPECT_THAT(value_of(findings, "address for others"), AllOf(HasSubstr("ib0"), HasSubstr("eth0")));
  EXPECT_TRUE(ranks_json(findings).at("address").is_null());
}

TEST_F(DoctorRanks, AMachineWithLoopbackAloneSaysSo) {
  const RankFindings findings = examine_ranks(two_sockets(3, false), {kTwoInterfaces.front()});
  EXPECT_THAT(value_of(findings, "address for others"), HasSubstr("only a loopback interface"));
  EXPECT_TRUE(ranks_json(findings).at("address").is_null());
}

TEST_F(DoctorRanks, FabricsAreListedByProvider) {
  RankFindings findings = examine_ranks(two_sockets(3, false), kTwoInterfaces);
  findings.fabrics = {
      {"efa", "rdmap0s6-rdm", 100'000'000'000}, {"efa", "rdmap0s7-rdm", 0}, {"shm", "shm", 0}};
  findings.fabrics_error = "cannot say more";
  std::vector<std::string> rows;
  for (const auto& [row, value] : rank_rows(findings)) rows.push_back(value);
  EXPECT_THAT(rows, testing::IsSupersetOf(
                        {"efa: rdmap0s6-rdm 100 Gbit/s, rdmap0s7-rdm", "shm: shm", "cannot say more"}));
  const auto json = ranks_json(findings).at("fabrics");
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0].at("bits_per_s"), 100'000'000'000);
  EXPECT_TRUE(json[1].at("bits_per_s").is_null());
}

}  // namespace
}  // namespace tessera
