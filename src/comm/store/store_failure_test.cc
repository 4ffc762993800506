// The error that every member gets when one of them fails, with ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// The error a member gets while it waits for a key that is never set.
std::string verdict_of(StoreClient& store) {
  return error_of([&] { store.get("never set", seconds(20)); });
}

TEST(StoreFailure, OwnReportReachesAllWithItsCode) {
  const auto server = StoreServer::start(quick_server_options(3));
  run_ranks(3, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 3, 1, server->port()), quick_store_options());
    if (rank == 1) {
      store->report_own_failure(ExitCode::kNumerics, "loss is not finite in step 7");
      return;
    }
    EXPECT_EQ(verdict_of(*store), "rank 1 on host host1: loss is not finite in step 7");
    EXPECT_EQ(store->failures().failure()->code, ExitCode::kNumerics);
    EXPECT_EQ(store->failures().failure()->rank, 1);
  });
  ASSERT_TRUE(server->failure());
  EXPECT_EQ(server->failure()->host, "host1");
}

TEST(StoreFailure, TheUsersMistakeBlamesNoRank) {
  for (const int per_node : {1, 2}) {
    const auto server = StoreServer::start(quick_server_options(2));
    run_ranks(2, [&](int rank) {
      const auto store =
          StoreClient::join(test_world(rank, 2, per_node, server->port()), quick_store_options());
      if (rank == 1) return store->report_own_failure(ExitCode::kNoInput, "text.txt: no such file");
      // In a job of one node there is no other host.
      EXPECT_EQ(verdict_of(*store),
                per_node == 1 ? "host host1: text.txt: no such file" : "text.txt: no such file");
      EXPECT_EQ(store->failures().failure()->code, ExitCode::kNoInput);
      EXPECT_EQ(store->failures().failure()->rank, 1);
    });
  }
}

TEST(StoreFailure, AnExceptionThatEndsARankIsNoOrderlyEnd) {
  const auto server = StoreServer::start(quick_server_options(2));
  run_ranks(2, [&](int rank) {
    try {
      const auto store = StoreClient::join(test_world(rank, 2, 1, server->port()), quick_store_options());
      if (rank == 0) throw std::runtime_error("for the test");
      EXPECT_EQ(verdict_of(*store), "rank 0 on host host0: ended by an error");
    } catch (const std::runtime_error&) {
    }
  });
}

TEST(StoreFailure, AgentsReportWins) {
  const auto server = StoreServer::start(quick_server_options(2));
  run_ranks(2, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 2, 2, server->port()), quick_store_options());
    if (rank == 0) {
      server->report({.rank = 1, .host = "host0", .message = "rank 1 on host host0 was killed by signal 9"});
    }
    EXPECT_EQ(verdict_of(*store), "rank 1 on host host0 was killed by signal 9");
  });
}

TEST(StoreFailure, RemoteAgentIsAMember) {
  const auto server = StoreServer::start(quick_server_options(2));
  World world = test_world(1, 2, 1, server->port());
  auto agent = StoreClient::join_as_agent(world, quick_store_options());
  EXPECT_EQ(server->missing(), "2 of 2 ranks missing: 0-1");
  run_ranks(2, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 2, 1, server->port()), quick_store_options());
    if (rank == 0) {
      agent->report({.rank = 1, .host = "host1", .message = "rank 1 on host host1 exited with code 3"});
    }
    EXPECT_EQ(verdict_of(*store), "rank 1 on host host1 exited with code 3");
  });
  EXPECT_EQ(error_of([&] { agent->failures().check(); }), "rank 1 on host host1 exited with code 3");
}

TEST(StoreFailure, SuspicionWaitsForWhatIsKnown) {
  const auto server = StoreServer::start(quick_server_options(3));
  run_ranks(3, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 3, 1, server->port()), quick_store_options());
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(100));
      store->report_own_failure(ExitCode::kIoError, "disk full");
    } else {
      // Each blames the other.
      const std::string evidence = "rank " + std::to_string(1 - rank) + " closed the connection";
      EXPECT_EQ(error_of([&] { store->failures().fail_because(1 - rank, evidence); }),
                "rank 2 on host host2: disk full");
    }
  });
}

TEST(StoreFailure, SuspicionsAreFollowedToTheLastSuspect) {
  const auto server = StoreServer::start(quick_server_options(3));
  run_ranks(3, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 3, 1, server->port()), quick_store_options());
    if (rank == 2) {
      EXPECT_EQ(verdict_of(*store), "rank 1 waited 60 s for rank 2");
      EXPECT_EQ(store->failures().failure()->host, "host2");
    } else {
      const std::string evidence =
          "rank " + std::to_string(rank) + " waited 60 s for rank " + std::to_string(rank + 1);
      EXPECT_EQ(error_of([&] { store->failures().fail_because(rank + 1, evidence); }),
                "rank 1 waited 60 s for rank 2");
    }
  });
}

TEST(StoreFailure, EndOfTheStoreIsNoticed) {
  auto server = StoreServer::start(quick_server_options(2));
  std::atomic<int> joined = 0;
  std::thread killer([&] {
    while (joined < 2) std::this_thread::sleep_for(milliseconds(5));
    server.reset();
  });
  const int port = server->port();
  run_ranks(2, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 2, 1, port), quick_store_options());
    ++joined;
    EXPECT_EQ(verdict_of(*store), "the store at 127.0.0.1:" + std::to_string(port) +
                                      " (agent of node 0) ended without a word (killed?)");
  });
  killer.join();
}

}  // namespace
}  // namespace tessera
