// Joining, sharing values and leaving, with ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TEST(StoreJoin, OneToEightRanksFindEachOther) {
  for (const int world_size : {1, 2, 3, 5, 8}) {
    const auto server = StoreServer::start(quick_server_options(world_size));
    run_ranks(world_size, [&](int rank) {
      const auto store =
          StoreClient::join(test_world(rank, world_size, 1, server->port()), quick_store_options());
      ASSERT_EQ(store->hosts().size(), static_cast<size_t>(world_size));
      for (int other = 0; other < world_size; ++other) {
        EXPECT_EQ(store->hosts()[static_cast<size_t>(other)], "host" + std::to_string(other));
      }
      store->set("from " + std::to_string(rank), std::string("\0binary", 7));
      for (int other = 0; other < world_size; ++other) {
        EXPECT_EQ(store->get("from " + std::to_string(other), seconds(10)), std::string("\0binary", 7));
      }
      store->add("sum", rank + 1);
      store->leave();
    });
    EXPECT_TRUE(server->wait_until_over(seconds(10)));
    EXPECT_FALSE(server->failure()) << server->failure()->message;
  }
}

TEST(StoreJoin, RankZeroServesWithoutAnAgent) {
  // A port that was free a moment ago.
  const int port = StoreServer::start(quick_server_options(1))->port();
  run_ranks(3, [&](int rank) {
    World world = test_world(rank, 3, 3, port);
    world.agent_has_store = false;
    const auto store = StoreClient::join(world, quick_store_options());
    EXPECT_EQ(store->local_address(), "127.0.0.1");
    // Rank 0 is the first to leave, and serves the others until they leave.
    if (rank != 0) {
      std::this_thread::sleep_for(milliseconds(200));
      EXPECT_EQ(store->get("last word", seconds(10)), "bye");
    } else {
      store->set("last word", "bye");
    }
    EXPECT_FALSE(store->failures().failed());
  });
}

TEST(StoreJoin, MembersMayComeLate) {
  const auto server = StoreServer::start(quick_server_options(2));
  run_ranks(2, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(1500));  // longer than the allowed silence
    StoreClient::join(test_world(rank, 2, 1, server->port()), quick_store_options());
  });
  EXPECT_FALSE(server->failure());
}

TEST(StoreJoin, StoreMayComeLate) {
  const int port = StoreServer::start(quick_server_options(1))->port();
  std::thread rank([&] { StoreClient::join(test_world(0, 1, 1, port), quick_store_options()); });
  std::this_thread::sleep_for(milliseconds(500));
  StoreServerOptions options = quick_server_options(1);
  options.port = port;
  const auto server = StoreServer::start(options);
  rank.join();
  EXPECT_TRUE(server->wait_until_over(seconds(10)));
}

// Provokes, as often as possible, that a heartbeat is due the moment the store goes away.
TEST(StoreJoin, AStoreThatComesAndGoesIsTriedAgain) {
  constexpr int kRanks = 9;
  StoreServerOptions options = quick_server_options(kRanks);
  options.port = StoreServer::start(options)->port();
  StoreOptions timing = quick_store_options();
  timing.heartbeat = milliseconds(1);
  std::thread all_but_the_last([&] {
    run_ranks(kRanks - 1,
              [&](int rank) { StoreClient::join(test_world(rank, kRanks, 1, options.port), timing); });
  });
  for (int i = 0; i < 20; ++i) {
    const auto server = StoreServer::start(options);
    while (server->present().empty()) std::this_thread::sleep_for(milliseconds(1));
  }
  const auto server = StoreServer::start(options);
  StoreClient::join(test_world(kRanks - 1, kRanks, 1, options.port), timing);
  all_but_the_last.join();
  EXPECT_FALSE(server->failure()) << server->failure()->message;
}

TEST(StoreJoin, DeadlineTellsWhoIsMissing) {
  const auto server = StoreServer::start(quick_server_options(6));
  run_ranks(6, [&](int rank) {
    if (rank == 2 || rank == 4 || rank == 5) return;
    StoreOptions options = quick_store_options();
    options.rendezvous_timeout = milliseconds(rank == 0 ? 700 : 1500);
    const std::string error =
        error_of([&] { StoreClient::join(test_world(rank, 6, 2, server->port()), options); });
    if (rank == 0) {
      EXPECT_EQ(error,
                "rank 0 on host host0: the job was not complete after 0.7 s: 3 of 6 ranks missing: 2, 4-5; "
                "joined: 0-1 (host host0), 3 (host host1)");
    } else {
      EXPECT_THAT(error, HasSubstr("ranks missing: "));
    }
  });
}

TEST(StoreSettings, RankThatDoesNotCompareIsNamed) {
  const auto server = StoreServer::start(quick_server_options(3));
  std::atomic<int> told = 0;
  run_ranks(3, [&](int rank) {
    StoreOptions options = quick_store_options();
    options.rendezvous_timeout = milliseconds(1000);
    const auto store = StoreClient::join(test_world(rank, 3, 1, server->port()), options);
    if (rank == 2) {
      while (told < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    EXPECT_EQ(error_of([&] {
                store->check_same_settings({{"lr", "1e-4"}});
              }),
              "rank 2 on host host2 has not reported its settings within 1 s of rank 0 on host host0");
    ++told;
  });
}

TEST(StoreValues, GetWaitsAndTellsTheKeyItWaitedFor) {
  const auto server = StoreServer::start(quick_server_options(1));
  const auto store = StoreClient::join(test_world(0, 1, 1, server->port()), quick_store_options());
  EXPECT_THAT(error_of([&] { store->get("nothing", milliseconds(100)); }),
              HasSubstr("nobody set 'nothing' in the store within 0.1 s"));
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    store->set("something", "x");
  });
  EXPECT_EQ(store->get("something", seconds(10)), "x");
  later.join();
  EXPECT_EQ(store->add("count", 5), 5);
  EXPECT_EQ(store->add("count", -7), -2);
  EXPECT_THAT(error_of([&] { store->add("something", 1); }), HasSubstr("'something' is not a number"));
}

TEST(StoreValues, AWatchedKeyIsKnownSoonAfterItIsSetAndNeverWaitedFor) {
  const auto server = StoreServer::start(quick_server_options(2));
  run_ranks(2, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 2, 1, server->port()), quick_store_options());
    EXPECT_EQ(store->watched(), std::nullopt);
    store->watch("never");
    store->watch("news");
    EXPECT_EQ(store->watched(), std::nullopt);
    store->add("watching", 1);
    if (rank == 0) {
      store->set("never", "not this");
      store->set("news", "this");
    }
    for (int wait = 0; wait < 1000 && !store->watched(); ++wait)
      std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(store->watched(), "this");
    store->leave();
  });
}

TEST(StoreSettings, FirstDifferenceIsNamedOnEveryRank) {
  const auto server = StoreServer::start(quick_server_options(4));
  std::barrier first_check(4);
  run_ranks(4, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 4, 2, server->port()), quick_store_options());
    EXPECT_EQ(error_of([&] { store->check_same_settings({{"lr", "1e-4"}, {"seed", "1"}}); }), "");
    // A rank that is still in the first check would learn there that the second has failed elsewhere.
    first_check.arrive_and_wait();
    std::map<std::string, std::string> settings{{"lr", "1e-4"}, {"seed", "1"}, {"stage", "2"}};
    if (rank == 2) settings = {{"lr", "1e-4"}, {"seed", "2"}};
    EXPECT_EQ(
        error_of([&] { store->check_same_settings(settings); }),
        "setting 'seed' differs: '1' for rank 0 on host host0, '2' for rank 2 on host host1 (and 1 more "
        "setting)");
  });
}

}  // namespace
}  // namespace tessera
