// Members that are killed or stopped: each is a process forked from the test, which has no threads at that
// point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks/store_test_support.h"
#include "support/web/free_port.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

// A process that runs the body and reports what it returned or threw.
class Process {
 public:
  explicit Process(const std::function<std::string()>& body) {
    std::array<int, 2> ends;
    if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      std::string text;
      try {
        text = body();
      } catch (const std::exception& error) {
        text = error.what();
      }
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written == std::ssize(text) ? 0 : 1);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), output_(std::exchange(other.output_, -1)) {}
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
  }

  void signal(int number) const { kill(pid_, number); }
  std::string result() {
    std::string text;
    std::array<char, 256> buffer;
    for (ssize_t size; (size = read(output_, buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(size));
    }
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    return text;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

StoreServerOptions server_on(int port, int world_size) {
  StoreServerOptions options = quick_server_options(world_size);
  options.port = port;
  return options;
}

// Joins, announces it, and stays until the key "end" is set.
std::string member(const World& world, const StoreOptions& options = quick_store_options()) {
  const auto store = StoreClient::join(world, options);
  store->add("joined", 1);
  const std::string end = store->get("end", seconds(60));
  store->leave();
  return end;
}

std::vector<Process> start_members(int world_size, int port) {
  std::vector<Process> members;
  for (int rank = 0; rank < world_size; ++rank) {
    members.emplace_back([=] { return member(test_world(rank, world_size, 1, port)); });
  }
  return members;
}

// The test observes the job as the agent of a node without ranks.
std::unique_ptr<StoreClient> observe(int world_size, int port) {
  World world = test_world(world_size, world_size + 1, 1, port);
  world.world_size = world_size;
  auto observer = StoreClient::join_as_agent(world, quick_store_options());
  while (observer->add("joined", 0) < world_size) std::this_thread::sleep_for(milliseconds(5));
  return observer;
}

TEST(StoreProcess, AJobWhoseLastRankFindsAnotherSilentHasNotStarted) {
  const int port = free_port();
  const Process first([=] { return member(test_world(0, 2, 1, port)); });
  StoreServerOptions options = server_on(port, 2);
  options.timing.silence = seconds(60);
  const auto server = StoreServer::start(options);
  while (server->present().empty()) std::this_thread::sleep_for(milliseconds(5));
  first.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(300));
  StoreOptions impatient = quick_store_options();
  impatient.rendezvous_timeout = milliseconds(700);
  EXPECT_THAT(error_of([&] { StoreClient::join(test_world(1, 2, 1, port), impatient); }),
              HasSubstr("all 2 ranks have joined, but not all of them can be heard"));
}

TEST(StoreProcess, AKilledRankIsNamedWithinASecond) {
  const int port = free_port();
  auto members = start_members(3, port);
  const auto server = StoreServer::start(server_on(port, 3));
  const auto observer = observe(3, port);
  const auto start = Clock::now();
  members[1].signal(SIGKILL);
  const std::string expected = "rank 1 on host host1 ended without a word (killed?)";
  EXPECT_EQ(members[0].result(), expected);
  EXPECT_EQ(members[2].result(), expected);
  EXPECT_LT(Clock::now() - start, seconds(1));
  ASSERT_TRUE(server->failure().has_value());
  EXPECT_EQ(server->failure()->rank, 1);
}

TEST(StoreProcess, WhoSawItEndKnowsWhy) {
  const int port = free_port();
  auto members = start_members(2, port);
  const auto server = StoreServer::start(server_on(port, 2));
  const auto observer = observe(2, port);
  members[1].signal(SIGKILL);
  std::this_thread::sleep_for(milliseconds(50));  // the store has seen the connection end
  server->report({.rank = 1, .host = "host1", .message = "rank 1 on host host1 was killed by signal 9"});
  EXPECT_EQ(members[0].result(), "rank 1 on host host1 was killed by signal 9");
}

TEST(StoreProcess, AKilledAgentIsTheCulpritNotItsRanks) {
  const int port = free_port();
  auto members = start_members(2, port);
  Process agent([=] {
    const auto store = StoreClient::join_as_agent(test_world(1, 2, 1, port), quick_store_options());
    store->add("joined", 1);
    return store->get("end", seconds(60));
  });
  const auto server = StoreServer::start(server_on(port, 2));
  const auto observer = observe(2, port);
  while (observer->add("joined", 0) < 3) std::this_thread::sleep_for(milliseconds(5));
  members[1].signal(SIGKILL);
  agent.signal(SIGKILL);
  EXPECT_EQ(members[0].result(), "the agent of node 1 on host host1 ended without a word (killed?)");
}

TEST(StoreProcess, AShortStopDisturbsNobody) {
  const int port = free_port();
  auto members = start_members(2, port);
  const auto server = StoreServer::start(server_on(port, 2));
  const auto observer = observe(2, port);
  for (int i = 0; i < 3; ++i) {
    members[1].signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(600));  // of the 1000 allowed
    members[1].signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_FALSE(server->failure()) << server->failure()->message;
  observer->set("end", "fine");
  EXPECT_EQ(members[0].result(), "fine");
  EXPECT_EQ(members[1].result(), "fine");
}

TEST(StoreProcess, AStoppedRankIsFoundByItsSilence) {
  const int port = free_port();
  auto members = start_members(2, port);
  const auto server = StoreServer::start(server_on(port, 2));
  const auto observer = observe(2, port);
  const auto start = Clock::now();
  members[1].signal(SIGSTOP);
  const std::string expected = "rank 1 on host host1: silent for 1.0 s";
  EXPECT_EQ(members[0].result(), expected);
  EXPECT_GT(Clock::now() - start, milliseconds(900));
  // It learns of the failure in the meantime rather than report the others as silent.
  members[1].signal(SIGCONT);
  EXPECT_EQ(members[1].result(), expected);
}

// Uses the timeouts of a real job.
TEST(StoreProcess, StopOfThreeSecondsWithTheDefaults) {
  const int port = free_port();
  std::vector<Process> members;
  for (int rank = 0; rank < 2; ++rank) {
    members.emplace_back([=] { return member(test_world(rank, 2, 1, port), StoreOptions{}); });
  }
  StoreServerOptions options = server_on(port, 2);
  options.timing = StoreOptions{};
  const auto server = StoreServer::start(options);
  const auto observer = observe(2, port);
  members[0].signal(SIGSTOP);
  std::this_thread::sleep_for(seconds(3));
  members[0].signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_FALSE(server->failure()) << server->failure()->message;
  observer->set("end", "fine");
  EXPECT_EQ(members[0].result(), "fine");
  EXPECT_EQ(members[1].result(), "fine");
}

TEST(StoreProcess, StopOfTheStoreIsMeasuredByItsMembers) {
  const int port = free_port();
  auto members = start_members(2, port);
  Process agent([=] {
    const auto server = StoreServer::start(server_on(port, 2));
    server->wait_until_over(seconds(60));
    return server->failure() ? server->failure()->message : std::string("over");
  });
  {
    const auto observer = observe(2, port);
    agent.signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(600));
    agent.signal(SIGCONT);
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_FALSE(observer->failures().failed());
    observer->leave();
  }
  agent.signal(SIGSTOP);
  const std::string expected =
      fmt::format("the store at 127.0.0.1:{} (agent of node 0) has been silent for 1.0 s", port);
  EXPECT_EQ(members[0].result(), expected);
  EXPECT_EQ(members[1].result(), expected);
}

TEST(StoreProcess, AKilledStoreIsNamed) {
  const int port = free_port();
  std::vector<Process> members;
  for (int rank = 0; rank < 2; ++rank) {
    World world = test_world(rank, 2, 1, port);
    world.agent_has_store = false;
    members.emplace_back([=] { return member(world); });
  }
  const auto observer = observe(2, port);
  members[0].signal(SIGKILL);
  EXPECT_EQ(members[1].result(),
            fmt::format("the store at 127.0.0.1:{} (rank 0) ended without a word (killed?)", port));
}

TEST(StoreProcess, AnAgentKilledBeforeTheJobIsCompleteIsADisruption) {
  const int port = free_port();
  Process agent([=] {
    const auto store = StoreClient::join_as_agent(test_world(1, 2, 1, port), quick_store_options());
    store->set("joined", "1");
    return store->get("end", seconds(60));
  });
  StoreServerOptions options = server_on(port, 2);
  options.num_agents = 1;
  const auto server = StoreServer::start(options);
  const auto observer = StoreClient::join_as_agent(test_world(0, 2, 1, port), quick_store_options());
  observer->get("joined", seconds(20));
  agent.signal(SIGKILL);
  EXPECT_EQ(error_of([&] { observer->get("never", seconds(20)); }),
            "the agent of node 1 on host host1 ended without a word (killed?)");
  EXPECT_TRUE(observer->failures().failure()->is_disruption);
}

TEST(StoreProcess, WhoDiesBeforeAllHaveJoinedIsReplaced) {
  // Long compared with the time a busy machine may stall a process.
  StoreOptions timing = quick_store_options();
  timing.silence = seconds(4);
  const int port = free_port();
  Process first([=] { return member(test_world(1, 2, 1, port), timing); });
  StoreServerOptions options = server_on(port, 2);
  options.timing = timing;
  const auto server = StoreServer::start(options);
  while (server->missing().find("joined: 1 (host host1)") == std::string::npos) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  first.signal(SIGSTOP);
  // While the first may still be alive, the second waits; it joins when the first is dropped for its silence.
  const auto start = Clock::now();
  std::this_thread::sleep_for(seconds(2));
  run_ranks(2, [&](int rank) {
    const auto store = StoreClient::join(test_world(rank, 2, 1, port), timing);
    EXPECT_FALSE(store->failures().failed());
  });
  EXPECT_GT(Clock::now() - start, milliseconds(2500));
  EXPECT_TRUE(server->wait_until_over(seconds(10)));
  EXPECT_FALSE(server->failure());
  first.signal(SIGCONT);
  EXPECT_THAT(first.result(), HasSubstr("comes too late"));
}

}  // namespace
}  // namespace tessera
