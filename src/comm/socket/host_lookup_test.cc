#include "comm/socket/host_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

HostLookup::Clock::time_point in(milliseconds time) { return HostLookup::Clock::now() + time; }

TEST(HostLookup, NumbersNeedNoServer) {
  HostLookup lookup([](const std::string&) -> HostLookup::Result { throw std::logic_error("asked"); });
  EXPECT_THAT(lookup.addresses_of("10.0.0.7", in(milliseconds(0))), ElementsAre("10.0.0.7"));
  EXPECT_THAT(lookup.addresses_of("fd00::7", in(milliseconds(0))), ElementsAre("fd00::7"));
  EXPECT_TRUE(is_numeric_address("127.0.0.1"));
  EXPECT_FALSE(is_numeric_address("localhost"));
}

// Repeated short attempts eventually get the answer of a slow server.
TEST(HostLookup, ShortTriesShareOneLookup) {
  std::promise<void> server;
  std::shared_future<void> answers = server.get_future();
  auto num_lookups = std::make_shared<std::atomic<int>>(0);
  HostLookup lookup([answers, num_lookups](const std::string& host) {
    ++*num_lookups;
    answers.wait();
    return HostLookup::Result{.addresses = {host + " is here"}, .problem = {}, .time = {}};
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(error_of([&] { lookup.addresses_of("head", in(milliseconds(1))); }),
                HasSubstr("cannot resolve 'head': no answer from the name servers"));
  }
  server.set_value();
  EXPECT_THAT(lookup.addresses_of("head", in(std::chrono::seconds(20))), ElementsAre("head is here"));
  EXPECT_EQ(*num_lookups, 1);
  EXPECT_THAT(lookup.addresses_of("head", in(std::chrono::seconds(20))), ElementsAre("head is here"));
  EXPECT_EQ(*num_lookups, 2) << "an answer that was read is not kept";
}

TEST(HostLookup, TellsWhatTheServerSays) {
  HostLookup lookup([](const std::string&) {
    return HostLookup::Result{.addresses = {}, .problem = "unknown", .time = {}};
  });
  EXPECT_EQ(error_of([&] { lookup.addresses_of("x", in(std::chrono::seconds(20))); }),
            "cannot resolve 'x': unknown");
}

}  // namespace
}  // namespace tessera
