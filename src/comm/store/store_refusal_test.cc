// Peers that must be refused, without disturbing accepted members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio.hpp>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "base/log.h"
#include "comm/socket/refusal_log.h"
#include "comm/store/store_proof.h"
#include "comm/store/store_wire.h"
#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A running job of two ranks, and the replies that a third party gets.
class RunningJob {
 public:
  RunningJob() : server_(StoreServer::start(quick_server_options(2))) {
    run_ranks(2, [&](int rank) { members_[rank] = StoreClient::join(world(rank), quick_store_options()); });
  }
  ~RunningJob() {
    EXPECT_FALSE(server_->failure()) << server_->failure()->message;
    members_[0]->set("still", "fine");
    EXPECT_EQ(members_[1]->get("still", seconds(10)), "fine");
  }

  World world(int rank) const { return test_world(rank, 2, 1, server_->port()); }
  std::string refusal_of(const World& intruder) const {
    StoreOptions options = quick_store_options();
    options.rendezvous_timeout = milliseconds(600);
    return error_of([&] { StoreClient::join(intruder, options); });
  }
  tcp::socket connect(asio::io_context& io) const {
    tcp::socket socket(io);
    socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server_->port())});
    return socket;
  }

 private:
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> members_[2];
};

TEST(StoreRefusal, SecondProcessWithTheSameRank) {
  const RunningJob job;
  EXPECT_THAT(job.refusal_of(job.world(1)),
              AllOf(HasSubstr("rank 1 on host host1 (process "),
                    HasSubstr("cannot join: rank 1 on host host1 (process "), HasSubstr("--node_rank")));
}

TEST(StoreRefusal, AnotherJob) {
  const RunningJob job;
  World intruder = job.world(1);
  intruder.run_id = "other\n";
  const std::string refusal = job.refusal_of(intruder);
  EXPECT_THAT(refusal,
              AllOf(HasSubstr("it does not prove the job's secret and name"), HasSubstr("--rdzv_id")));
  EXPECT_THAT(refusal, Not(HasSubstr("'test'"))) << "an intruder is not told the name of the job";
}

TEST(StoreRefusal, FormerAndLaterStarts) {
  StoreServerOptions server_options = quick_server_options(1);
  server_options.restart_count = 1;
  const auto server = StoreServer::start(server_options);
  World world = test_world(0, 1, 1, server->port());
  EXPECT_EQ(error_of([&] { StoreClient::join(world, quick_store_options()); }),
            "rank 0 on host host0 belongs to start 0 of the job, the store to start 1");
  // The store of the later start may still come up.
  world.restart_count = 2;
  StoreOptions options = quick_store_options();
  options.rendezvous_timeout = milliseconds(500);
  EXPECT_THAT(error_of([&] { StoreClient::join(world, options); }),
              AllOf(HasSubstr("not complete after 0.5 s"), HasSubstr("belongs to start 2 of the job")));
}

TEST(StoreRefusal, AnotherShapeOfTheJob) {
  const auto server = StoreServer::start(quick_server_options(4));
  const int port = server->port();
  std::thread first([&] {
    StoreOptions options = quick_store_options();
    options.rendezvous_timeout = seconds(2);
    EXPECT_THAT(error_of([&] { StoreClient::join(test_world(0, 4, 2, port), options); }),
                HasSubstr("missing"));
  });
  while (server->missing().find("joined: 0") == std::string::npos)
    std::this_thread::sleep_for(milliseconds(5));
  const auto refusal_of = [&](const World& world) {
    return error_of([&] { StoreClient::join(world, quick_store_options()); });
  };
  EXPECT_THAT(refusal_of(test_world(1, 8, 2, port)), HasSubstr("was started for 8 ranks, the store for 4"));
  EXPECT_THAT(refusal_of(test_world(3, 4, 1, port)),
              HasSubstr("all nodes must have the same number of ranks"));
  World same_node = test_world(1, 4, 2, port);
  same_node.host = "elsewhere";
  EXPECT_THAT(refusal_of(same_node), HasSubstr("both claim to be on node 0"));
  first.join();
}

struct Message {
  wire::Type type;
  std::string body;
};

Message read_message(tcp::socket& socket) {
  std::array<std::byte, wire::kHeaderBytes> bytes;
  asio::read(socket, asio::buffer(bytes));
  const wire::Header header = wire::decode_header(bytes);
  std::string body(header.body_bytes, '\0');
  asio::read(socket, asio::buffer(body));
  return {header.type, body};
}

void write_message(tcp::socket& socket, const Message& message) {
  asio::write(socket, asio::buffer(wire::encode_header(
                          {.type = message.type, .body_bytes = static_cast<uint32_t>(message.body.size())})));
  asio::write(socket, asio::buffer(message.body));
}

// A member's answer to this challenge.
Message proof(const std::string& secret, const std::string& challenge) {
  const Nonce nonce = random_nonce();
  const Mac mac = wire::prove(wire::proof_key(secret, "test"), wire::decode_bytes(challenge), nonce).of_peer;
  return {wire::Type::kProof, wire::encode(wire::Proof{nonce, mac})};
}

// The steps of a member up to its request.
void join_by_hand(tcp::socket& socket, const std::string& secret, const wire::JoinRequest& request) {
  write_message(socket, proof(secret, read_message(socket).body));
  EXPECT_EQ(read_message(socket).type, wire::Type::kWelcome);
  write_message(socket, {wire::Type::kJoin, wire::encode(request)});
}

TEST(StoreRefusal, AnotherVersionOfTheProtocolIsTold) {
  const RunningJob job;
  asio::io_context io;
  tcp::socket socket = job.connect(io);
  EXPECT_EQ(read_message(socket).type, wire::Type::kChallenge);
  const auto header = wire::encode_header({.version = 9, .type = wire::Type::kJoin, .body_bytes = 3});
  asio::write(socket, asio::buffer(header));
  asio::write(socket, asio::buffer("abc", 3));
  const Message answer = read_message(socket);
  EXPECT_EQ(answer.type, wire::Type::kRefused);
  EXPECT_THAT(wire::decode<wire::Refusal>(answer.body).message, HasSubstr("the store speaks version 3"));
  EXPECT_THAT(wire::decode<wire::Refusal>(answer.body).message, HasSubstr("this program version 9"));
}

TEST(StoreRefusal, WhoDoesNotKnowTheSecret) {
  for (const std::string& secret : {std::string("the job's own secret"), std::string()}) {
    StoreServerOptions options = quick_server_options(1);
    options.secret = secret;
    const auto server = StoreServer::start(options);
    World world = test_world(0, 1, 1, server->port());
    for (const std::string& other :
         {std::string("another secret here"), std::string("the job's own secres"), std::string()}) {
      if (other == secret) continue;
      world.secret = other;
      EXPECT_THAT(error_of([&] { StoreClient::join(world, quick_store_options()); }),
                  HasSubstr("does not prove the job's secret"));
    }
    EXPECT_THAT(server->missing(), HasSubstr("refused: it does not prove"));
    world.secret = secret;
    EXPECT_EQ(error_of([&] { StoreClient::join(world, quick_store_options()); }), "");
  }
}

// The answer to one challenge is worthless for the next.
TEST(StoreRefusal, ReplayedProofs) {
  StoreServerOptions options = quick_server_options(1);
  options.secret = "the job's own secret";
  const auto server = StoreServer::start(options);
  asio::io_context io;
  const tcp::endpoint port(asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server->port()));
  const wire::JoinRequest request = {.host = "host0", .address = "127.0.0.1"};
  Message recorded;
  {
    tcp::socket socket(io);
    socket.connect(port);
    recorded = proof(options.secret, read_message(socket).body);
  }
  tcp::socket socket(io);
  socket.connect(port);
  const Message challenge = read_message(socket);
  write_message(socket, recorded);
  EXPECT_EQ(read_message(socket).type, wire::Type::kRefused);
  EXPECT_THAT(server->missing(), HasSubstr("1 of 1 rank missing: 0"));
  // The answer to its own challenge is accepted.
  tcp::socket member(io);
  member.connect(port);
  join_by_hand(member, options.secret, request);
  EXPECT_EQ(read_message(member).type, wire::Type::kAccepted);
}

// A request before the proof is neither read nor answered.
TEST(StoreRefusal, RequestsBeforeTheProof) {
  const RunningJob job;
  asio::io_context io;
  for (const wire::Type type : {wire::Type::kJoin, wire::Type::kMeet, wire::Type::kGet, wire::Type::kReport,
                                wire::Type::kHeartbeat, wire::Type::kRefused, wire::Type::kWelcome}) {
    tcp::socket socket = job.connect(io);
    EXPECT_EQ(read_message(socket).type, wire::Type::kChallenge);
    write_message(socket, {type, wire::encode(wire::JoinRequest{.host = "host0", .address = "::1"})});
    std::array<char, 1> nothing;
    asio::error_code end;
    EXPECT_EQ(asio::read(socket, asio::buffer(nothing), end), 0u) << static_cast<int>(type);
  }
}

// A program that took over the port, and what it hears. `act` gets the connection after the member's proof.
class FakeStore {
 public:
  explicit FakeStore(std::function<void(tcp::socket& socket, const Message& proof)> act)
      : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}),
        thread_([this, act = std::move(act)] { serve(act); }) {}
  ~FakeStore() { end(); }
  // Returns all bytes that members have sent.
  std::string end() {
    if (!is_over_.exchange(true)) {
      asio::io_context io;
      tcp::socket last(io);
      last.connect(address_);
      thread_.join();
    }
    return heard_;
  }

  World world() const {
    World world = test_world(0, 1, 1, address_.port());
    world.secret = "the job's own secret";
    world.host = "host-of-the-job";
    world.run_id = "name-of-the-job";
    return world;
  }

 private:
  void serve(const std::function<void(tcp::socket& socket, const Message& proof)>& act) {
    while (!is_over_) {
      tcp::socket socket = acceptor_.accept();
      if (is_over_) return;
      asio::error_code end;
      try {
        write_message(socket, {wire::Type::kChallenge, std::string(32, 'c')});
        const Message proof = read_message(socket);
        heard_ += proof.body;
        act(socket, proof);
      } catch (const std::system_error&) {
        continue;  // the member has gone
      }
      std::array<char, 1024> rest;
      while (!end) heard_.append(rest.data(), socket.read_some(asio::buffer(rest), end));
    }
  }

  asio::io_context io_;
  tcp::acceptor acceptor_;
  const tcp::endpoint address_ = acceptor_.local_endpoint();
  std::atomic<bool> is_over_ = false;
  std::string heard_;  // used on the thread until it ends
  std::thread thread_;
};

// It echoes the member's own messages, refuses it in words of its own, lies about the end of the job, ...
TEST(StoreRefusal, StoreThatDoesNotKnowTheSecretIsNotBelieved) {
  const auto refusal = [](ExitCode code, bool try_again) {
    return [=](tcp::socket& socket, const Message&) {
      write_message(socket,
                    {wire::Type::kRefused, wire::encode(wire::Refusal{try_again, code, "\x1b[31mlies"})});
    };
  };
  using Act = std::function<void(tcp::socket&, const Message&)>;
  const Act acts[] = {
      [](tcp::socket& socket, const Message& proof) {
        write_message(socket, {wire::Type::kWelcome, proof.body.substr(proof.body.size() - 32)});
        write_message(socket, {wire::Type::kAccepted, ""});
      },
      [](tcp::socket& socket, const Message&) {
        write_message(socket, {wire::Type::kAccepted, ""});
      },
      [](tcp::socket& socket, const Message&) {
        write_message(socket, {wire::Type::kWelcome, "short"});
      },
      [](tcp::socket& socket, const Message&) {
        write_message(socket, {wire::Type::kVerdict, wire::encode(Failure{.message = "\x1b[31mlies"})});
      },
      [](tcp::socket& socket, const Message&) {
        const auto header = wire::encode_header({.type = wire::Type::kRefused, .body_bytes = 0xffffffff});
        asio::write(socket, asio::buffer(header));
      },
      [](tcp::socket& socket, const Message&) {
        const auto header =
            wire::encode_header({.version = 7, .type = wire::Type::kRefused, .body_bytes = 0});
        asio::write(socket, asio::buffer(header));
      },
      refusal(ExitCode::kDone, false),
      refusal(ExitCode::kBadConfig, false),
      refusal(ExitCode::kInternal, true),
  };
  int number = 0;
  for (const Act& act : acts) {
    SCOPED_TRACE(number++);
    FakeStore fake(act);
    StoreOptions options = quick_store_options();
    options.silence = milliseconds(100);
    try {
      StoreClient::join(fake.world(), options);
      ADD_FAILURE() << "it was joined";
    } catch (const RefusedError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_THAT(error.what(), Not(HasSubstr("lies")));
      EXPECT_THAT(error.what(),
                  testing::AnyOf(HasSubstr("does not prove the job's secret"),
                                 HasSubstr("is not a Tessera store: "), HasSubstr("speaks version 7")));
    }
    EXPECT_THAT(fake.end(), Not(HasSubstr("of-the-job"))) << "said before the store had proved itself";
  }
}

// Whoever answers on the port for a moment does not end the job.
TEST(StoreRefusal, IntruderOnThePortIsWaitedOut) {
  int port = 0;
  std::thread joining;
  {
    FakeStore fake([](tcp::socket& socket, const Message&) {
      write_message(socket, {wire::Type::kRefused, wire::encode(wire::Refusal{.message = "go away"})});
    });
    const World world = fake.world();
    port = world.master_port;
    joining = std::thread(
        [world] { EXPECT_EQ(error_of([&] { StoreClient::join(world, quick_store_options()); }), ""); });
    std::this_thread::sleep_for(milliseconds(300));
  }
  StoreServerOptions options = quick_server_options(1);
  options.port = port;
  options.secret = "the job's own secret";
  options.run_id = "name-of-the-job";
  const auto server = StoreServer::start(options);
  joining.join();
}

// A flood from one address does not push out connections of another.
TEST(StoreRefusal, FloodFromOneAddressPushesOutItself) {
  const RunningJob job;
  asio::io_context io;
  tcp::socket other(io, tcp::v4());
  other.bind({asio::ip::make_address("127.0.0.2"), 0});
  other.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(job.world(0).master_port)});
  EXPECT_EQ(read_message(other).type, wire::Type::kChallenge);
  std::vector<tcp::socket> flood;
  for (int i = 0; i < 400; ++i) {
    flood.push_back(job.connect(io));
    EXPECT_EQ(read_message(flood.back()).type, wire::Type::kChallenge);
  }
  std::array<char, 1> nothing;
  asio::error_code state;
  other.non_blocking(true);
  other.read_some(asio::buffer(nothing), state);
  EXPECT_EQ(state, asio::error::would_block);
}

TEST(RefusalLog, OneLineAnAddressAndSecond) {
  RefusalLog log;
  LogTap tap;
  const RefusalLog::Clock::time_point begin{};
  for (int i = 0; i < 100; ++i) log.warn("refused", "10.0.0.1", "why", begin);
  log.warn("refused", "10.0.0.2", "why", begin);
  log.warn("refused", "10.0.0.1", "why", begin + milliseconds(1001));
  EXPECT_THAT(tap.take(), testing::ElementsAre("refused: why", "refused: why",
                                               "refused: why (and 99 more since the last such line)"));
  for (int i = 0; i < 1000; ++i) log.warn("refused", std::to_string(i), "why", begin + seconds(10));
  EXPECT_EQ(tap.take().size(), RefusalLog::kMaxAddresses);
  log.warn("refused", "10.0.0.1", "why", begin + seconds(12));
  EXPECT_EQ(tap.take().size(), 1u);
}

TEST(StoreRefusal, NoiseOnThePortDisturbsNobody) {
  const RunningJob job;
  asio::io_context io;
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(job.connect(io));
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::minstd_rand random(seed);
    std::string noise;
    if (seed % 2 == 0) {
      // Where the header is valid, the body is not.
      const auto type = static_cast<wire::Type>(random() % 40);
      const auto size = static_cast<uint32_t>(seed % 4 == 0 ? random() % 64 : random());
      const auto header = wire::encode_header({.type = type, .request = seed, .body_bytes = size});
      noise.assign(reinterpret_cast<const char*>(header.data()), header.size());
    }
    for (auto left = random() % 300; left > 0; --left) noise += static_cast<char>(random());
    tcp::socket socket = job.connect(io);
    asio::error_code ignored;
    asio::write(socket, asio::buffer(noise), ignored);
  }
  // Silent connections are still open, while those of a port scan are closed at once.
  EXPECT_EQ(read_message(silent.front()).type, wire::Type::kChallenge);
  std::array<char, 1> nothing;
  silent.front().non_blocking(true);
  asio::error_code state;
  silent.front().read_some(asio::buffer(nothing), state);
  EXPECT_EQ(state, asio::error::would_block);
}

TEST(StoreRefusal, MembersThatSendNonsenseAreLost) {
  const auto server = StoreServer::start(quick_server_options(2));
  std::thread sane([&] {
    const auto store = StoreClient::join(test_world(0, 2, 1, server->port()), quick_store_options());
    EXPECT_THAT(error_of([&] { store->get("never", seconds(20)); }),
                HasSubstr("rank 1 on host host1 ended without a word (killed?): not a message of the store"));
  });
  // The next member completes the job.
  while (server->missing().find("joined: 0") == std::string::npos) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  asio::io_context io;
  tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server->port())});
  wire::JoinRequest request;
  request.world_size = 2;
  request.rank = 1;
  request.node_rank = 1;
  request.host = "host1";
  join_by_hand(socket, "", request);
  asio::write(socket, asio::buffer(std::string(64, 'x')));
  sane.join();
}

TEST(StoreRefusal, PortsOfOtherPrograms) {
  const auto server = StoreServer::start(quick_server_options(1));
  StoreServerOptions options = quick_server_options(1);
  options.port = server->port();
  for (const auto& addresses : {std::vector<std::string>{"127.0.0.1"}, std::vector<std::string>{}}) {
    options.bind_addresses = addresses;
    EXPECT_THAT(error_of([&] { const auto second = StoreServer::start(options); }),
                HasSubstr(fmt::format("port {} is taken on this machine", server->port())));
  }

  asio::io_context io;
  tcp::acceptor other(io, {asio::ip::make_address("127.0.0.1"), 0});
  std::thread answering([&] {
    tcp::socket socket = other.accept();
    asio::write(socket, asio::buffer(std::string("SSH-2.0-OpenSSH_9.2p1 Debian\r\n")));
    std::array<char, 1024> rest;
    asio::error_code end;
    while (!end) socket.read_some(asio::buffer(rest), end);
  });
  const World world = test_world(0, 1, 1, other.local_endpoint().port());
  StoreOptions impatient = quick_store_options();
  impatient.silence = milliseconds(0);
  EXPECT_THAT(error_of([&] { StoreClient::join(world, impatient); }), HasSubstr("is not a Tessera store"));
  answering.join();
}

TEST(StoreRefusal, UnknownHostIsNamedAtTheDeadline) {
  World world = test_world(0, 1, 1, 1);
  world.master_addr = "no-such-host.invalid";
  StoreOptions options = quick_store_options();
  options.rendezvous_timeout = milliseconds(300);
  EXPECT_THAT(error_of([&] { StoreClient::join(world, options); }),
              HasSubstr("cannot resolve 'no-such-host.invalid'"));
  world.master_addr = "127.0.0.1";
  EXPECT_THAT(error_of([&] { StoreClient::join(world, options); }),
              HasSubstr("cannot connect to 127.0.0.1:1: Connection refused"));
}

}  // namespace
}  // namespace tessera
