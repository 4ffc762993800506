#include "comm/socket/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

InterfaceAddress address(const std::string& interface, const std::string& text) {
  InterfaceAddress made;
  made.interface = interface;
  made.address = text;
  made.is_v6 = text.find(':') != std::string::npos;
  made.is_loopback = interface == "lo";
  made.is_link_local = text.starts_with("fe80:");
  return made;
}

const std::vector<InterfaceAddress> kMachine = {
    address("lo", "127.0.0.1"), address("lo", "::1"),        address("eth0", "fe80::1"),
    address("eth0", "fd00::2"), address("eth0", "10.0.0.2"), address("ib0", "192.168.5.2"),
};

World nodes(int num_nodes) { return test_world(0, num_nodes, 1, 1); }

std::string choose(int num_nodes, const std::string& store_side, const std::string& interface = "") {
  return choose_local_address(nodes(num_nodes), store_side, interface, kMachine).address;
}

TEST(LocalAddress, TheOneThatReachesTheStore) {
  EXPECT_EQ(choose(2, "192.168.5.2"), "192.168.5.2");
  EXPECT_EQ(choose(2, "fd00::2"), "fd00::2");
  EXPECT_EQ(choose(1, "127.0.0.1"), "127.0.0.1");
}

TEST(LocalAddress, LoopbackIsNotForOtherHosts) {
  EXPECT_EQ(choose(2, "127.0.0.1"), "10.0.0.2");
  EXPECT_EQ(choose(2, "127.0.1.1"), "10.0.0.2");
  EXPECT_EQ(choose(2, "::1"), "fd00::2");
  EXPECT_TRUE(choose_local_address(nodes(2), "127.0.0.1", "", kMachine).is_guess);
  EXPECT_FALSE(choose_local_address(nodes(2), "10.0.0.2", "", kMachine).is_guess);
  EXPECT_EQ(choose_local_address(nodes(2), "127.0.0.1", "", {kMachine.front()}).address, "127.0.0.1");
}

TEST(LocalAddress, NamedInterface) {
  EXPECT_EQ(choose(2, "10.0.0.2", "ib0"), "192.168.5.2");
  EXPECT_EQ(choose(2, "10.0.0.2", "none,eth0"), "10.0.0.2");
  EXPECT_EQ(choose(2, "fd00::2", "eth0"), "fd00::2");
  EXPECT_THAT(
      error_of([] { choose(2, "10.0.0.2", "eth7"); }),
      AllOf(HasSubstr("--interface 'eth7': no such interface"),
            HasSubstr("lo (127.0.0.1), lo (::1), eth0 (fe80::1), eth0 (fd00::2), eth0 (10.0.0.2), ib0")));
}

TEST(LocalAddress, ThisMachineHasLoopback) {
  const auto found = interface_addresses();
  EXPECT_TRUE(std::ranges::any_of(found, [](const InterfaceAddress& each) { return each.is_loopback; }));
}

TEST(ListenAddresses, AreThoseThatWereAskedFor) {
  const std::vector<InterfaceAddress> here = {
      {.interface = "lo", .address = "127.0.0.1", .is_loopback = true},
      {.interface = "eth0", .address = "10.0.0.7"}};
  using List = std::vector<std::string>;
  EXPECT_EQ(listen_addresses("10.0.0.7", kOwnNameTime, here), List{"10.0.0.7"});
  EXPECT_EQ(listen_addresses("127.0.0.1", kOwnNameTime, here), List{"127.0.0.1"});
  EXPECT_EQ(listen_addresses("localhost", kOwnNameTime, here), List{"127.0.0.1"});
  // The address belongs to another machine, or to one behind NAT.
  EXPECT_EQ(listen_addresses("10.0.0.8", kOwnNameTime, here), List{});
  EXPECT_EQ(listen_addresses("no-such-host.invalid", kOwnNameTime, here), List{});
}

}  // namespace
}  // namespace tessera
