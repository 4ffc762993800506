// Tests which nodes take part in a start: the rules, and agents meeting over loopback.
#include "launch/meeting/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/meeting/meeting_client.h"
#include "launch/meeting/meeting_farewell.h"
#include "launch/meeting/meeting_server.h"
#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Duration = Meeting::Duration;

constexpr MeetingTerms kTwoToFour = {
    .min_nodes = 2, .max_nodes = 4, .last_call = Duration(3), .timeout = Duration(10)};

TEST(Meeting, IsCompleteAtOnceWithAllNodes) {
  Meeting meeting(kTwoToFour);
  for (uint64_t number = 1; number <= 3; ++number) {
    EXPECT_FALSE(meeting.is_complete());
    meeting.arrive(number, {});
  }
  EXPECT_TRUE(meeting.is_complete());
  EXPECT_EQ(meeting.num_present(), 4);
}

TEST(Meeting, WaitsForTheLastCallWithEnoughNodes) {
  Meeting meeting(kTwoToFour);
  meeting.arrive(1, {});
  meeting.advance(Duration(2));
  EXPECT_FALSE(meeting.is_complete());
  // The last call starts over when there are too few nodes.
  meeting.leave(1);
  meeting.advance(Duration(2));
  meeting.arrive(2, {});
  meeting.advance(Duration(2.9));
  EXPECT_FALSE(meeting.is_complete());
  meeting.advance(Duration(0.1));
  EXPECT_TRUE(meeting.is_complete());
}

TEST(Meeting, FailsWithTooFewAtTheTimeout) {
  Meeting meeting(kTwoToFour);
  meeting.advance(Duration(9.9));
  EXPECT_FALSE(meeting.has_failed());
  meeting.arrive(1, {});
  meeting.advance(Duration(1));
  EXPECT_FALSE(meeting.has_failed()) << "enough are there";
  meeting.leave(1);
  EXPECT_TRUE(meeting.has_failed());
}

TEST(Meeting, OneNodeMayBeEnough) {
  Meeting meeting({.min_nodes = 1, .max_nodes = 2, .last_call = Duration(1), .timeout = Duration(5)});
  EXPECT_FALSE(meeting.is_complete());
  meeting.advance(Duration(1));
  EXPECT_TRUE(meeting.is_complete());
  EXPECT_THAT(meeting.order(), ElementsAre());
}

TEST(Meeting, OrderIsWantedThenFormerThenOfArrival) {
  Meeting meeting({.min_nodes = 1, .max_nodes = 9});
  meeting.arrive(1, {});
  meeting.arrive(2, {.former_rank = 7});
  meeting.arrive(3, {.former_rank = 2});
  meeting.arrive(4, {.wanted_rank = 6});
  meeting.arrive(5, {.wanted_rank = 1, .former_rank = 5});
  meeting.arrive(6, {});
  EXPECT_THAT(meeting.order(), ElementsAre(5, 4, 3, 2, 1, 6));
}

// ---- Over sockets

MeetingOptions options_of(int min_nodes, int max_nodes) {
  return {.bind_addresses = {"127.0.0.1"},
          .secret = "the job's own secret",
          .run_id = "test",
          .host = "host0",
          .terms = {.min_nodes = min_nodes,
                    .max_nodes = max_nodes,
                    .last_call = Duration(0.5),
                    .timeout = Duration(20)},
          .restart_count = 4,
          .num_failures = 2,
          .timing = quick_store_options()};
}

MeetingClientOptions client_of(const MeetingOptions& meeting, int port, int wanted_rank) {
  return {.address = "127.0.0.1",
          .port = port,
          .secret = meeting.secret,
          .run_id = meeting.run_id,
          .request = {.min_nodes = meeting.terms.min_nodes,
                      .max_nodes = meeting.terms.max_nodes,
                      .local_world_size = meeting.local_world_size,
                      .wanted_rank = wanted_rank,
                      .host = "host" + std::to_string(wanted_rank)},
          .timing = meeting.timing};
}

// The assignment, or the text of the error.
struct Outcome {
  std::optional<wire::Assignment> assignment;
  std::string error;
};

template <typename Member>
Outcome outcome_of(Member& member) {
  Outcome outcome;
  outcome.error = error_of([&] { outcome.assignment = member.wait(seconds(20)); });
  return outcome;
}

TEST(MeetingServer, GivesRanksToThoseWhoAreThere) {
  const MeetingOptions options = options_of(2, 4);
  MeetingServer server(options);
  MeetingClient third(client_of(options, server.port(), 3));
  MeetingClient first(client_of(options, server.port(), 1));
  const Outcome own = outcome_of(server);
  ASSERT_TRUE(own.assignment) << own.error;
  EXPECT_EQ(own.assignment->node_rank, 0);
  int expected_rank = 1;
  for (MeetingClient* client : {&first, &third}) {
    const Outcome outcome = outcome_of(*client);
    ASSERT_TRUE(outcome.assignment) << outcome.error;
    EXPECT_EQ(outcome.assignment->node_rank, expected_rank++);
    EXPECT_EQ(outcome.assignment->num_nodes, 3);
    EXPECT_EQ(outcome.assignment->restart_count, 4);
    EXPECT_EQ(outcome.assignment->num_failures, 2);
  }
}

TEST(MeetingServer, NodesMayComeBeforeNode0) {
  const MeetingOptions options = options_of(2, 2);
  const int port = MeetingServer(options).port();
  MeetingClient client(client_of(options, port, 1));
  std::this_thread::sleep_for(milliseconds(300));
  MeetingOptions late = options;
  late.port = port;
  MeetingServer server(late);
  EXPECT_TRUE(outcome_of(server).assignment);
  EXPECT_TRUE(outcome_of(client).assignment);
}

TEST(MeetingServer, RefusesWhoDoesNotFit) {
  const MeetingOptions options = options_of(3, 3);
  MeetingServer server(options);
  MeetingClient present(client_of(options, server.port(), 2));
  EXPECT_FALSE(present.wait(milliseconds(300)));
  const auto refusal = [&](auto change) {
    MeetingClientOptions intruder = client_of(options, server.port(), 1);
    change(intruder);
    MeetingClient client(intruder);
    return outcome_of(client).error;
  };
  EXPECT_THAT(refusal([](auto& o) { o.run_id = "other"; }),
              HasSubstr("does not prove the job's secret and name"));
  EXPECT_THAT(refusal([](auto& o) { o.request.max_nodes = 4; }),
              HasSubstr("node 1 on host host1 was started with --nnodes 3:4, node 0 with 3"));
  EXPECT_THAT(refusal([](auto& o) { o.request.local_world_size = 2; }), HasSubstr("--nproc_per_node"));
  EXPECT_THAT(refusal([](auto& o) { o.request.wanted_rank = 2; }), HasSubstr("both claim to be node 2"));
  EXPECT_THAT(refusal([](auto& o) { o.request.wanted_rank = 0; }), HasSubstr("both claim to be node 0"));
  EXPECT_THAT(refusal([](auto& o) { o.secret = "another secret here"; }),
              HasSubstr("does not prove the job's secret"));
  EXPECT_THAT(refusal([](auto& o) { o.secret = ""; }), HasSubstr("does not prove the job's secret"));
  MeetingClient fits(client_of(options, server.port(), 1));
  EXPECT_TRUE(outcome_of(server).assignment);
  EXPECT_EQ(outcome_of(present).assignment->node_rank, 2);
}

TEST(MeetingServer, WhoLeavesIsNotCounted) {
  const MeetingOptions options = options_of(2, 3);
  MeetingServer server(options);
  {
    MeetingClient gone(client_of(options, server.port(), 2));
    EXPECT_FALSE(gone.wait(milliseconds(200)));
  }
  EXPECT_FALSE(server.wait(milliseconds(700)));
  MeetingClient stays(client_of(options, server.port(), 1));
  EXPECT_EQ(outcome_of(server).assignment->num_nodes, 2);
}

TEST(MeetingServer, SaysWhoIsThereWhenTooFewCome) {
  MeetingOptions options = options_of(3, 3);
  options.terms.timeout = Duration(0.5);
  MeetingServer server(options);
  MeetingClient client(client_of(options, server.port(), 2));
  const std::string expected = fmt::format(
      "node 1 of 3 has not joined after 0.5 s; joined: node 0 on host host0, node 2 on host host2; check "
      "that tessera launch is running there with its --node_rank, --nnodes 3 and the same --rdzv_endpoint, "
      "and that port {} of host host0 can be reached from there (name, firewall)",
      server.port());
  EXPECT_EQ(outcome_of(client).error, expected);
  EXPECT_EQ(outcome_of(server).error, expected);
}

TEST(MeetingServer, EndOfNode0IsToldOrNoticed) {
  const MeetingOptions options = options_of(3, 3);
  auto server = std::make_unique<MeetingServer>(options);
  const int port = server->port();
  MeetingClient client(client_of(options, port, 1));
  EXPECT_FALSE(client.wait(milliseconds(300)));
  server.reset();
  EXPECT_EQ(outcome_of(client).error, "the agent of node 0 on host host0 has ended while the nodes met");
  // A node that took part in an earlier start waits less long for node 0 than a new one.
  MeetingClientOptions again = client_of(options, port, 1);
  again.has_met_before = true;
  const auto begin = Clock::now();
  MeetingClient late(again);
  EXPECT_THAT(outcome_of(late).error, HasSubstr("has not answered for 1.0 s"));
  EXPECT_LT(Clock::now() - begin, seconds(10));
}

TEST(MeetingServer, NewNodeWaitsWhileTheJobRuns) {
  MeetingOptions options = options_of(1, 2);
  StoreServerOptions store_options = quick_server_options(1);
  store_options.secret = options.secret;
  auto store = StoreServer::start(store_options);
  options.port = store->port();
  MeetingClient client(client_of(options, options.port, 1));
  EXPECT_FALSE(client.wait(milliseconds(1500))) << "longer than the silence";
  store.reset();
  MeetingServer server(options);
  EXPECT_EQ(outcome_of(client).assignment->num_nodes, 2);
}

TEST(MeetingFarewell, TellsWaitingNodesThatTheJobHasEnded) {
  MeetingOptions options = options_of(1, 2);
  StoreServerOptions store_options = quick_server_options(1);
  store_options.secret = options.secret;
  store_options.run_id = options.run_id;
  auto store = StoreServer::start(store_options);
  options.port = store->port();
  EXPECT_EQ(store->num_waiting_nodes(), 0);
  MeetingClient client(client_of(options, options.port, 1));
  EXPECT_FALSE(client.wait(milliseconds(500)));
  EXPECT_EQ(store->num_waiting_nodes(), 1);
  store.reset();
  MeetingFarewell farewell({.bind_addresses = options.bind_addresses,
                            .port = options.port,
                            .secret = options.secret,
                            .run_id = options.run_id,
                            .message = {.code = ExitCode::kDone, .message = "all is done"}});
  EXPECT_TRUE(farewell.wait_until_told(1, seconds(20)));
  EXPECT_FALSE(farewell.wait_until_told(2, milliseconds(20)));
  try {
    client.wait(seconds(20));
    FAIL() << "it waits on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDone) << error.what();
    EXPECT_EQ(std::string(error.what()), "all is done");
  }
}

TEST(MeetingFarewell, IsBelievedFromTheJobAlone) {
  MeetingOptions options = options_of(1, 2);
  FarewellOptions other = {.bind_addresses = options.bind_addresses,
                           .secret = options.secret,
                           .run_id = "other",
                           .message = {.code = ExitCode::kDone, .message = "all is done"}};
  const MeetingFarewell farewell(other);
  MeetingClient client(client_of(options, farewell.port(), 1));
  EXPECT_THAT(outcome_of(client).error, HasSubstr("does not prove the job's secret and name"));
  other.run_id = options.run_id;
  other.secret = "another job's secret";
  MeetingFarewell intruder(other);
  MeetingClient careful(client_of(options, intruder.port(), 1));
  EXPECT_THAT(outcome_of(careful).error, HasSubstr("does not prove the job's secret"));
  EXPECT_FALSE(intruder.wait_until_told(1, milliseconds(20)));
}

// ---- The store of a start whose agents have met

TEST(StoreAgents, OneThatDoesNotComeIsADisruption) {
  StoreServerOptions options = quick_server_options(3);
  options.num_agents = 2;
  options.time_for_agents = milliseconds(400);
  const auto server = StoreServer::start(options);
  const auto agent = StoreClient::join_as_agent(test_world(1, 3, 1, server->port()), quick_store_options());
  const std::string error = error_of([&] { agent->get("never", seconds(20)); });
  EXPECT_EQ(error, "the agent of node 2 has not come within 0.4 s after the nodes met");
  EXPECT_TRUE(server->failure()->is_disruption);
  EXPECT_TRUE(agent->failures().failure()->is_disruption);
  EXPECT_FALSE(agent->has_lost_store());
}

}  // namespace
}  // namespace tessera
