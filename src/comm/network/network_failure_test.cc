// Killed and stopped members, unauthenticated connections, and a network that corrupts data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "comm/network/link/wire_message.h"
#include "comm/network/network_group.h"
#include "comm/socket/tcp_socket.h"
#include "resource_counter.h"
#include "support/ranks/network_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// ---- Processes

// A store for processes, kept in a folder.
class FolderRendezvous : public Rendezvous {
 public:
  explicit FolderRendezvous(fs::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    const fs::path file = file_of(key);
    const fs::path draft = fs::path(file).concat(fmt::format(".{}", ::getpid()));
    std::ofstream(draft) << value;
    fs::rename(draft, file);
  }
  std::string get(const std::string& key, milliseconds timeout) override {
    for (const auto deadline = Clock::now() + timeout; !fs::exists(file_of(key));) {
      if (Clock::now() > deadline) fail(ExitCode::kTryAgain, "{}: nobody has set it", key);
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(file_of(key)).rdbuf();
    return text.str();
  }
  std::string host(int rank) const override { return std::string(1, static_cast<char>('a' + rank)); }
  std::string local_address() const override { return "127.0.0.1"; }

 private:
  fs::path file_of(std::string key) const {
    std::ranges::replace(key, '/', '_');
    return folder_ / key;
  }
  fs::path folder_;
};

// Members as processes; what each threw is written to a file.
class MemberProcesses {
 public:
  MemberProcesses(int size, const NetworkOptions& options,
                  const std::function<void(NetworkGroup& group)>& body) {
    std::string pattern = (fs::temp_directory_path() / "tessera-net-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        std::string error;
        try {
          FolderRendezvous rendezvous(folder_);
          FailureDetector failures;
          NetworkGroup group("test", ranks, rank, &rendezvous, options, failures);
          std::ofstream(formed_file(rank)) << "formed";
          body(group);
        } catch (const std::exception& caught) {
          error = caught.what();
        }
        std::ofstream(error_file(rank)) << error;
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
  }
  ~MemberProcesses() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (pids_[rank] < 0) continue;
      ::kill(pids_[rank], SIGKILL);
      wait(static_cast<int>(rank));
    }
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void signal(int rank, int number) const { ::kill(pids_[static_cast<size_t>(rank)], number); }
  // Waits until all members are connected.
  void wait_until_formed() const {
    for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank) {
      while (!fs::exists(formed_file(rank))) std::this_thread::sleep_for(milliseconds(1));
    }
  }
  // "" = success.
  std::string wait(int rank) {
    int status = 0;
    ::waitpid(std::exchange(pids_[static_cast<size_t>(rank)], -1), &status, 0);
    if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
    std::ostringstream text;
    text << std::ifstream(error_file(rank)).rdbuf();
    return text.str();
  }

 private:
  fs::path formed_file(int rank) const { return folder_ / fmt::format("formed.{}", rank); }
  fs::path error_file(int rank) const { return folder_ / fmt::format("error.{}", rank); }
  fs::path folder_;
  std::vector<pid_t> pids_;
};

void run_operations(NetworkGroup& group, int count, int64_t elements) {
  const std::vector<Part> parts = even_parts(elements, group.size());
  std::vector<float> buffer(static_cast<size_t>(elements));
  for (int i = 0; i < count; ++i) {
    std::ranges::fill(buffer, 1.0f);
    group.wait(group.reduce_scatter(buffer, parts, {"gradients", i}));
    const float sum = buffer[static_cast<size_t>(parts[static_cast<size_t>(group.index())].begin)];
    if (sum != static_cast<float>(group.size())) fail(ExitCode::kInternal, "wrong sum {}", sum);
  }
}

class NetworkFault : public OverFabrics {};
TESSERA_OVER_FABRICS(NetworkFault);

TEST_P(NetworkFault, KilledMemberIsNoticedAtOnceWhereverItIs) {
  std::mt19937_64 random(11);
  for (int repeat = 0; repeat < (is_tcp() ? 12 : 6); ++repeat) {
    MemberProcesses members(3, options(std::chrono::seconds(30), 2),
                            [](NetworkGroup& group) { run_operations(group, 100'000, 500'000); });
    members.wait_until_formed();
    std::this_thread::sleep_for(milliseconds(random() % 100));
    members.signal(2, SIGKILL);
    const Clock::time_point begin = Clock::now();
    const std::string errors[] = {members.wait(0), members.wait(1)};
    // Without a store a survivor may notice the other survivor's closed connection first.
    EXPECT_THAT(errors, Each(AllOf(HasSubstr(" on host "), HasSubstr("is gone"), HasSubstr("of gradients"))));
    EXPECT_THAT(errors, testing::Contains(HasSubstr("rank 2 on host c is gone")));
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 5) << "repeat " << repeat;
    EXPECT_EQ(members.wait(2), "signal 9");
  }
}

TEST_P(NetworkFault, MemberKilledBeforeTheFirstOperationIsNoticedAtOnce) {
  MemberProcesses members(2, options(std::chrono::seconds(30), 2), [](NetworkGroup& group) {
    if (group.index() == 1) ::raise(SIGKILL);
    run_operations(group, 1, 1000);
  });
  const Clock::time_point begin = Clock::now();
  EXPECT_THAT(members.wait(0), HasSubstr("rank 1 on host b is gone"));
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 5);
}

TEST_P(NetworkFault, SilentMemberIsNamedAtTheDeadline) {
  MemberProcesses members(2, options(std::chrono::seconds(30), 2), [](NetworkGroup& group) {
    group.set_timeout(milliseconds(700));
    run_operations(group, 1'000'000, 500'000);
  });
  members.wait_until_formed();
  std::this_thread::sleep_for(milliseconds(100));
  members.signal(1, SIGSTOP);
  EXPECT_THAT(members.wait(0),
              AllOf(HasSubstr("rank 1 on host b"), HasSubstr("reduce_scatter"),
                    HasSubstr("of gradients of group"), HasSubstr("has not finished after 0.7 s")));
}

TEST_P(NetworkFault, PauseShorterThanTheDeadlineDoesNoHarm) {
  MemberProcesses members(2, options(std::chrono::seconds(30), 2),
                          [](NetworkGroup& group) { run_operations(group, 200, 500'000); });
  std::this_thread::sleep_for(milliseconds(100));
  members.signal(1, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1000));
  members.signal(1, SIGCONT);
  EXPECT_EQ(members.wait(0), "");
  EXPECT_EQ(members.wait(1), "");
}

// ---- Unauthenticated peers

// Address and port of a published value.
SocketAddress published_address(const std::string& value) {
  std::istringstream fields(value);
  int version = 0, connections = 0, port = 0;
  std::string address;
  fields >> version >> connections >> port >> address;
  return parse_address(address, port);
}

TEST_P(NetworkFault, IntrudersAtTheListenerDisturbNobody) {
  LocalRendezvous rendezvous;
  std::vector<UniqueFd> intruders;
  FailureDetector failures[2];
  std::string errors[2];
  std::thread first([&] {
    try {
      NetworkGroup group("test", {0, 1}, 0, &rendezvous, options(), failures[0]);
      run_operations(group, 3, 100'000);
    } catch (const std::exception& error) {
      errors[0] = error.what();
    }
  });
  const SocketAddress address = published_address(rendezvous.get("network/test/0", std::chrono::seconds(10)));
  std::mt19937_64 random(3);
  for (int i = 0; i < 40; ++i) {
    UniqueFd intruder = begin_connect(address);
    std::this_thread::sleep_for(milliseconds(2));
    std::vector<uint64_t> garbage(1 + random() % 40);
    for (uint64_t& word : garbage) word = random();
    // Some send nothing, some send garbage, some begin like a member; some disconnect.
    if (i % 4 == 1) ::send(intruder.get(), garbage.data(), garbage.size() * 8, MSG_NOSIGNAL);
    if (i % 4 == 2) {
      const uint32_t answer[22] = {0x48535354, 1, 1, 0, static_cast<uint32_t>(i / 4 % 4), 0, 1, 2};
      ::send(intruder.get(), answer, sizeof(answer), MSG_NOSIGNAL);
    }
    if (i % 3 != 0) intruders.push_back(std::move(intruder));
  }
  try {
    NetworkGroup group("test", {0, 1}, 1, &rendezvous, options(), failures[1]);
    run_operations(group, 3, 100'000);
  } catch (const std::exception& error) {
    errors[1] = error.what();
  }
  first.join();
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// ---- A network that corrupts data

struct Damage {
  enum class Kind { kNone, kFlipBit, kCut, kRepeat, kInsert };
  Kind kind = Kind::kNone;
  int connection = 0;    // index of the incoming connection
  bool upstream = true;  // from the connecting to the listening side
  int64_t at_byte = 0;
};

// Forwards connections to an address, and corrupts one of them once.
class Proxy {
 public:
  Proxy(const SocketAddress& target, const Damage& damage)
      : target_(target), damage_(damage), listener_(listen_on("127.0.0.1", 0)), thread_([this] { run(); }) {}
  ~Proxy() {
    stopping_ = true;
    thread_.join();
  }
  int port() const { return local_port(listener_); }
  bool damaged() const { return damaged_; }

 private:
  struct Pipe {
    int number;
    std::array<UniqueFd, 2> ends;  // connecting side, listening side
    std::array<std::vector<char>, 2> pending;
    std::array<int64_t, 2> passed{};
  };

  void run() {
    while (!stopping_) {
      bool moved = false;
      if (UniqueFd incoming = accept_from(listener_)) {
        Pipe& pipe = pipes_.emplace_back();
        pipe.number = static_cast<int>(pipes_.size()) - 1;
        pipe.ends = {std::move(incoming), begin_connect(target_)};
        moved = true;
      }
      for (Pipe& pipe : pipes_) {
        for (size_t from = 0; from < 2; ++from) moved |= pass(pipe, from);
      }
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  bool pass(Pipe& pipe, size_t from) {
    std::vector<char>& pending = pipe.pending[from];
    if (!pipe.ends[0] || !pipe.ends[1]) return false;
    if (pending.empty()) {
      pending.resize(20'000);
      const ssize_t got = ::recv(pipe.ends[from].get(), pending.data(), pending.size(), MSG_DONTWAIT);
      pending.resize(got > 0 ? static_cast<size_t>(got) : 0);
      const bool ended =
          got == 0 || (got < 0 && errno != EAGAIN && errno != ENOTCONN && errno != EINPROGRESS);
      if (ended) pipe.ends = {};
      if (got <= 0) return false;
      damage(pipe, from);
      pipe.passed[from] += got;
    }
    if (!pipe.ends[1 - from]) return false;
    const ssize_t sent =
        ::send(pipe.ends[1 - from].get(), pending.data(), pending.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) pending.erase(pending.begin(), pending.begin() + sent);
    return sent > 0;
  }

  void damage(Pipe& pipe, size_t from) {
    std::vector<char>& data = pipe.pending[from];
    const int64_t at = damage_.at_byte - pipe.passed[from];
    if (damaged_ || damage_.kind == Damage::Kind::kNone || pipe.number != damage_.connection ||
        damage_.upstream != (from == 0) || at < 0 || at >= static_cast<int64_t>(data.size())) {
      return;
    }
    damaged_ = true;
    const auto place = data.begin() + at;
    if (damage_.kind == Damage::Kind::kFlipBit) *place = static_cast<char>(*place ^ 0x10);
    if (damage_.kind == Damage::Kind::kCut) pipe.ends = {};
    if (damage_.kind == Damage::Kind::kInsert) data.insert(place, 17, 'x');
    if (damage_.kind == Damage::Kind::kRepeat) {
      const std::vector<char> again(data.begin(), data.end());
      data.insert(data.end(), again.begin(), again.end());
    }
  }

  SocketAddress target_;
  Damage damage_;
  UniqueFd listener_;
  std::deque<Pipe> pipes_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> damaged_ = false;
  std::thread thread_;
};

// The errors of two members that communicate through a proxy.
std::vector<std::string> run_through_proxy(const Damage& damage, milliseconds timeout, bool* damaged) {
  std::unique_ptr<Proxy> proxy;
  std::mutex mutex;
  LocalRendezvous rendezvous([&](const std::string& key, const std::string& value) {
    if (key != "network/test/0") return value;
    const std::lock_guard lock(mutex);
    if (!proxy) proxy = std::make_unique<Proxy>(published_address(value), damage);
    return fmt::format("{} 2 {} 127.0.0.1 tcp", kWireVersion, proxy->port());
  });
  const auto errors =
      run_members({.options = {.timeout = timeout, .connections = 2}, .rendezvous = &rendezvous},
                  [](NetworkGroup& group) { run_operations(group, 4, 300'000); });
  *damaged = proxy->damaged();
  return errors;
}

TEST(NetworkDamage, ProxyWithoutDamageChangesNothing) {
  bool damaged = true;
  EXPECT_THAT(run_through_proxy({}, std::chrono::seconds(20), &damaged), Each(IsEmpty()));
  EXPECT_FALSE(damaged);
}

TEST(NetworkDamage, DamagedDataNeverBecomeASum) {
  using Kind = Damage::Kind;
  uint64_t seed = 1;
  for (const Kind kind : {Kind::kFlipBit, Kind::kCut, Kind::kRepeat, Kind::kInsert}) {
    for (int repeat = 0; repeat < 5; ++repeat, ++seed) {
      std::mt19937_64 random(seed);
      // After the handshake: 40 and 32 bytes downstream, 88 upstream.
      const Damage damage{.kind = kind,
                          .connection = static_cast<int>(random() % 2),
                          .upstream = random() % 2 == 0,
                          .at_byte = 88 + static_cast<int64_t>(random() % 500'000)};
      bool damaged = false;
      const auto errors = run_through_proxy(damage, std::chrono::seconds(4), &damaged);
      EXPECT_TRUE(damaged) << "seed " << seed;
      // The member that detects it fails. The other may already have finished, with correct sums.
      EXPECT_THAT(errors, testing::Contains(HasSubstr("rank "))) << "seed " << seed;
      EXPECT_THAT(errors, Each(testing::Not(HasSubstr("wrong sum")))) << "seed " << seed;
      if (kind == Kind::kFlipBit) {
        EXPECT_THAT(errors, testing::Contains(AnyOf(HasSubstr("arrived corrupted: CRC32C"),
                                                    HasSubstr("corrupted message"))))
            << "seed " << seed;
      }
    }
  }
}

// Uses libfabric's own connections: the proxy's address replaces theirs in the store.
std::vector<std::string> run_fabric_through_proxy(const Damage& damage, milliseconds timeout, bool* damaged) {
  std::unique_ptr<Proxy> proxy;
  std::mutex mutex;
  LocalRendezvous rendezvous([&](const std::string& key, const std::string& value) {
    if (key != "network/test/1/fabric") return value;
    const std::lock_guard lock(mutex);
    // A sockaddr_in as hexadecimal digits: family, port, address, zeros.
    if (!proxy) {
      proxy = std::make_unique<Proxy>(parse_address("127.0.0.1", std::stoi(value.substr(4, 4), nullptr, 16)),
                                      damage);
    }
    return fmt::format("{}{:04x}{}", value.substr(0, 4), proxy->port(), value.substr(8));
  });
  NetworkOptions options;
  options.timeout = timeout;
  options.connections = 1;
  options.fabric = parse_fabric("tcp;ofi_rxm");
  const auto errors = run_members({.options = options, .rendezvous = &rendezvous},
                                  [](NetworkGroup& group) { run_operations(group, 4, 300'000); });
  *damaged = proxy->damaged();
  return errors;
}

TEST(NetworkDamage, DamagedDataOverLibfabricNeverBecomeASum) {
  const std::string reason = TestFabric{"tcp;ofi_rxm"}.why_missing();
  if (!reason.empty()) GTEST_SKIP() << reason;
  bool damaged = true;
  EXPECT_THAT(run_fabric_through_proxy({}, std::chrono::seconds(20), &damaged), Each(IsEmpty()));
  EXPECT_FALSE(damaged);
  using Kind = Damage::Kind;
  uint64_t seed = 1;
  for (const Kind kind : {Kind::kFlipBit, Kind::kCut}) {
    for (int repeat = 0; repeat < 5; ++repeat, ++seed) {
      std::mt19937_64 random(seed);
      const Damage damage{.kind = kind,
                          .connection = 0,
                          .upstream = random() % 2 == 0,
                          .at_byte = 2'000 + static_cast<int64_t>(random() % 500'000)};
      const auto errors = run_fabric_through_proxy(damage, std::chrono::seconds(2), &damaged);
      EXPECT_TRUE(damaged) << "seed " << seed;
      EXPECT_THAT(errors, testing::Contains(HasSubstr("rank "))) << "seed " << seed;
      EXPECT_THAT(errors, Each(testing::Not(HasSubstr("wrong sum")))) << "seed " << seed;
    }
  }
}

TEST(NetworkDamage, DamagedHandshakeIsTriedAgain) {
  for (const bool upstream : {true, false}) {
    for (int64_t at = 0; at < (upstream ? 88 : 40); at += 7) {
      bool damaged = false;
      const Damage damage{
          .kind = Damage::Kind::kFlipBit, .connection = 1, .upstream = upstream, .at_byte = at};
      EXPECT_THAT(run_through_proxy(damage, std::chrono::seconds(20), &damaged), Each(IsEmpty()))
          << "byte " << at << (upstream ? " up" : " down");
      EXPECT_TRUE(damaged);
    }
  }
}

// ---- Memory

TEST(NetworkGroup, TakesNothingFromTheHeapOnceRunning) {
  if (!counts_resources()) GTEST_SKIP() << "a sanitizer needs the allocator for itself";
  std::atomic<int64_t> taken = -1;
  std::barrier both(2);
  const auto errors = run_members({}, [&](NetworkGroup& group) {
    std::vector<float> buffer(1'000'000);
    const std::vector<Part> parts = even_parts(1'000'000, 2);
    const std::vector<Part> byte_parts = even_parts(4'000'000, 2);
    const auto step = [&] {
      group.wait(group.reduce_scatter(buffer, parts, {"gradients", 1}));
      group.wait(group.all_gather(std::as_writable_bytes(std::span(buffer)), byte_parts, {"weights", 1}));
      group.wait(group.broadcast(std::as_writable_bytes(std::span(buffer)), 1, {"settings"}));
    };
    step();
    both.arrive_and_wait();
    const int64_t before = resource_counts().allocations;
    both.arrive_and_wait();
    for (int i = 0; i < 20; ++i) step();
    both.arrive_and_wait();
    if (group.index() == 0) taken = resource_counts().allocations - before;
    both.arrive_and_wait();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_EQ(taken, 0);
}

}  // namespace
}  // namespace tessera
