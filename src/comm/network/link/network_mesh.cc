#include "comm/network/link/network_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "comm/network/link/network_handshake.h"
#include "comm/network/link/wire_message.h"
#include "comm/ranks/proof.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{20};
constexpr milliseconds kRetryInterval{50};
// Limits on unauthenticated connections that send nothing: how long each may stay, and how many there may be.
constexpr milliseconds kHandshakeTime{5'000};
constexpr size_t kMaxPendingPeers = 256;

enum class Io { kDone, kPending, kLost };

// Reads or writes a small struct in as many pieces as it takes.
template <typename T>
class SmallMessage {
 public:
  SmallMessage() = default;
  explicit SmallMessage(const T& value) : value_(value) {}

  Io receive(const UniqueFd& socket) {
    while (at_ < sizeof(T)) {
      const ssize_t got = ::recv(socket.get(), reinterpret_cast<char*>(&value_) + at_, sizeof(T) - at_, 0);
      if (got == 0) return Io::kLost;
      if (got < 0) return errno == EAGAIN || errno == EINTR ? Io::kPending : Io::kLost;
      at_ += static_cast<size_t>(got);
    }
    return Io::kDone;
  }
  Io send(const UniqueFd& socket) {
    while (at_ < sizeof(T)) {
      const ssize_t sent =
          ::send(socket.get(), reinterpret_cast<const char*>(&value_) + at_, sizeof(T) - at_, MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR ? Io::kPending : Io::kLost;
      at_ += static_cast<size_t>(sent);
    }
    return Io::kDone;
  }
  const T& value() const { return value_; }

 private:
  T value_{};
  size_t at_ = 0;
};

// An incoming connection that has not authenticated itself yet.
struct PendingPeer {
  UniqueFd socket;
  Clock::time_point deadline;
  SmallMessage<Challenge> challenge;
  SmallMessage<Response> response;
  bool challenge_sent = false;
};

// A connection initiated by this member.
struct Outgoing {
  enum class State { kWaiting, kConnecting, kChallenge, kResponse, kWelcome, kDone };

  int member = 0;
  int connection = 0;
  State state = State::kWaiting;
  Clock::time_point retry_at;  // while waiting: when to connect; then: when to give up this attempt
  UniqueFd socket;
  SmallMessage<Challenge> challenge;
  SmallMessage<Response> response;
  SmallMessage<Welcome> welcome;
};

class MeshBuilder {
 public:
  MeshBuilder(const Members& members, const std::string& group, const NetworkOptions& options,
              Rendezvous& rendezvous, FailureDetector& failures)
      : members_(members),
        group_(group),
        options_(options),
        rendezvous_(rendezvous),
        failures_(failures),
        deadline_(Clock::now() + options.timeout) {
    mesh_.sockets.resize(static_cast<size_t>(options.connections));
    for (std::vector<UniqueFd>& sockets : mesh_.sockets) sockets.resize(members_.ranks.size());
  }

  Mesh build() {
    publish();
    read_peers();
    while (!is_complete()) {
      failures_.check();
      if (Clock::now() > deadline_) fail_at_deadline();
      wait_for_something();
      accept_peers();
      std::erase_if(pending_, [&](PendingPeer& peer) { return !advance(peer); });
      for (Outgoing& outgoing : outgoing_) advance(outgoing);
    }
    return std::move(mesh_);
  }

 private:
  std::string key(const std::string& what) const { return group_key(group_, what); }
  std::string member_key(int member) const {
    return key(std::to_string(members_.ranks[static_cast<size_t>(member)]));
  }
  const std::string& name(int member) const { return members_.names[static_cast<size_t>(member)]; }
  UniqueFd& slot(int connection, int member) {
    return mesh_.sockets[static_cast<size_t>(connection)][static_cast<size_t>(member)];
  }
  milliseconds time_left() const {
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()));
  }

  void publish() {
    const std::string address = rendezvous_.local_address();
    listener_ = listen_on(address, 0);
    if (members_.index == 0) rendezvous_.set(key("salt"), random_secret());
    rendezvous_.set(member_key(members_.index),
                    fmt::format("{} {} {} {} {}", kWireVersion, options_.connections, local_port(listener_),
                                address, fabric_name(options_.fabric)));
  }

  std::string published_by(int member, const std::string& key) {
    const std::string evidence =
        fmt::format("{} has not joined group {} within {:.3g} s of {}", name(member), group_,
                    std::chrono::duration<double>(options_.timeout).count(), name(members_.index));
    return failures_.blame_at_deadline(members_.ranks[static_cast<size_t>(member)], evidence,
                                       [&] { return rendezvous_.get(key, time_left()); });
  }

  void read_peers() {
    const std::string salt = published_by(0, key("salt"));
    mesh_.key = hmac_sha256(rendezvous_.job_key(), {"network group", group_, salt});
    for (int member = 0; member < members_.size(); ++member) {
      if (member == members_.index) {
        addresses_.emplace_back();
        continue;
      }
      const std::string text = published_by(member, member_key(member));
      std::istringstream fields(text);
      uint32_t version = 0;
      int connections = 0;
      int port = 0;
      std::string address, fabric;
      fields >> version >> connections >> port >> address >> fabric;
      // The version always comes first: the rest of another version cannot be parsed.
      if (version != kWireVersion) {
        fail(ExitCode::kBadConfig,
             "{} speaks version {} of the network format, {} version {}: the same build of tessera must run "
             "on all nodes",
             name(member), version, name(members_.index), kWireVersion);
      }
      if (connections != options_.connections) {
        fail(ExitCode::kBadConfig, "{} has --connections {}, {} has {}: they must be the same", name(member),
             connections, name(members_.index), options_.connections);
      }
      TESSERA_CHECK(!fields.fail(), "the store has '{}' for {}", text, name(member));
      if (fabric != fabric_name(options_.fabric)) {
        fail(ExitCode::kBadConfig,
             "{} uses fabric {}, {} {}: give all nodes the same --fabric, or nodes of one kind where it is "
             "auto",
             name(member), fabric, name(members_.index), fabric_name(options_.fabric));
      }
      addresses_.push_back(parse_address(address, port));
      if (member > members_.index) continue;
      for (int connection = 0; connection < options_.connections; ++connection) {
        Outgoing& outgoing = outgoing_.emplace_back();
        outgoing.member = member;
        outgoing.connection = connection;
      }
    }
  }

  bool is_complete() {
    for (const Outgoing& outgoing : outgoing_) {
      if (outgoing.state != Outgoing::State::kDone) return false;
    }
    return missing_member() < 0;
  }

  // The first member with a missing connection; -1 = none.
  int missing_member() {
    for (int member = 0; member < members_.size(); ++member) {
      for (int connection = 0; connection < options_.connections && member != members_.index; ++connection) {
        if (!slot(connection, member)) return member;
      }
    }
    return -1;
  }

  [[noreturn]] void fail_at_deadline() {
    const int member = std::max(0, missing_member());
    failures_.fail_because(
        members_.ranks[static_cast<size_t>(member)],
        fmt::format(
            "{} did not connect with {} within {:.1f} s (group {}): check that TCP between these hosts is "
            "open, or choose another --interface",
            name(member), name(members_.index), std::chrono::duration<double>(options_.timeout).count(),
            group_));
  }

  void wait_for_something() {
    polled_.clear();
    polled_.push_back({listener_.get(), POLLIN, 0});
    for (const PendingPeer& peer : pending_) {
      polled_.push_back({peer.socket.get(), static_cast<short>(peer.challenge_sent ? POLLIN : POLLOUT), 0});
    }
    for (const Outgoing& outgoing : outgoing_) {
      if (!outgoing.socket) continue;
      const bool writes =
          outgoing.state == Outgoing::State::kConnecting || outgoing.state == Outgoing::State::kResponse;
      polled_.push_back({outgoing.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    ::poll(polled_.data(), polled_.size(), static_cast<int>(kPollInterval.count()));
  }

  void accept_peers() {
    for (UniqueFd socket = accept_from(listener_); socket; socket = accept_from(listener_)) {
      if (pending_.size() == kMaxPendingPeers) pending_.pop_front();
      PendingPeer& peer = pending_.emplace_back();
      peer.socket = std::move(socket);
      peer.deadline = Clock::now() + kHandshakeTime;
      peer.challenge = SmallMessage<Challenge>(make_challenge(random_nonce()));
    }
  }

  // Whether the handshake is still in progress.
  bool advance(PendingPeer& peer) {
    if (!peer.challenge_sent) {
      const Io sent = peer.challenge.send(peer.socket);
      if (sent == Io::kLost) return false;
      peer.challenge_sent = sent == Io::kDone;
    }
    const Io received = peer.response.receive(peer.socket);
    if (received == Io::kPending) return Clock::now() < peer.deadline;
    if (received == Io::kDone) welcome(peer);
    return false;
  }

  void welcome(PendingPeer& peer) {
    const Response& response = peer.response.value();
    const Listener listener = {members_.index, members_.size(), options_.connections};
    if (!is_response_to(peer.challenge.value(), response, listener, mesh_.key)) return;
    SmallMessage<Welcome> welcome(make_welcome(peer.challenge.value(), response, mesh_.key));
    // 32 bytes always fit into the buffer of a socket that has sent only 40.
    if (welcome.send(peer.socket) != Io::kDone) return;
    // A response to a fresh challenge cannot be a replay, so the peer has given up its earlier connection.
    slot(response.connection, response.from) = std::move(peer.socket);
  }

  void advance(Outgoing& outgoing) {
    using State = Outgoing::State;
    if (outgoing.state == State::kDone) return;
    if (outgoing.state == State::kWaiting && Clock::now() < outgoing.retry_at) return;
    switch (shake_hands(outgoing)) {
      case Io::kDone:
        slot(outgoing.connection, outgoing.member) = std::move(outgoing.socket);
        outgoing.state = State::kDone;
        return;
      case Io::kPending:
        // Retry only after reading: a process that was stopped still has to read what arrived in that time.
        if (Clock::now() > outgoing.retry_at) retry(outgoing);
        return;
      case Io::kLost:
        return retry(outgoing);
    }
  }

  Io shake_hands(Outgoing& outgoing) {
    using State = Outgoing::State;
    if (outgoing.state == State::kWaiting) {
      outgoing.challenge = {};
      outgoing.welcome = {};
      outgoing.socket = begin_connect(addresses_[static_cast<size_t>(outgoing.member)]);
      if (!outgoing.socket) return Io::kLost;
      outgoing.state = State::kConnecting;
      outgoing.retry_at = Clock::now() + kHandshakeTime;
    }
    if (outgoing.state == State::kConnecting) {
      pollfd polled{outgoing.socket.get(), POLLOUT, 0};
      if (::poll(&polled, 1, 0) <= 0) return Io::kPending;
      if (connect_result(outgoing.socket) != 0) return Io::kLost;
      outgoing.state = State::kChallenge;
    }
    if (outgoing.state == State::kChallenge) {
      if (const Io io = outgoing.challenge.receive(outgoing.socket); io != Io::kDone) return io;
      const Challenge& challenge = outgoing.challenge.value();
      if (!is_challenge(challenge)) return Io::kLost;
      outgoing.response = SmallMessage<Response>(make_response(challenge,
                                                               {.from = members_.index,
                                                                .to = outgoing.member,
                                                                .connection = outgoing.connection,
                                                                .nonce = random_nonce()},
                                                               mesh_.key));
      outgoing.state = State::kResponse;
    }
    if (outgoing.state == State::kResponse) {
      if (const Io io = outgoing.response.send(outgoing.socket); io != Io::kDone) return io;
      outgoing.state = State::kWelcome;
    }
    if (const Io io = outgoing.welcome.receive(outgoing.socket); io != Io::kDone) return io;
    const bool is_proved = is_welcome(outgoing.welcome.value(), outgoing.challenge.value(),
                                      outgoing.response.value(), mesh_.key);
    return is_proved ? Io::kDone : Io::kLost;
  }

  // A peer that has published its address is listening: an error here comes from the network or from an
  // unauthenticated peer, and may be transient.
  static void retry(Outgoing& outgoing) {
    outgoing.socket = {};
    outgoing.state = Outgoing::State::kWaiting;
    outgoing.retry_at = Clock::now() + kRetryInterval;
  }

  const Members& members_;
  const std::string& group_;
  const NetworkOptions& options_;
  Rendezvous& rendezvous_;
  FailureDetector& failures_;
  Clock::time_point deadline_;
  Mesh mesh_;
  UniqueFd listener_;
  std::vector<SocketAddress> addresses_;
  std::vector<Outgoing> outgoing_;
  std::deque<PendingPeer> pending_;
  std::vector<pollfd> polled_;
};

}  // namespace

std::string group_key(const std::string& group, const std::string& what) {
  return fmt::format("network/{}/{}", group, what);
}

Mesh connect_mesh(const Members& members, const std::string& group, const NetworkOptions& options,
                  Rendezvous& rendezvous, FailureDetector& failures) {
  return MeshBuilder(members, group, options, rendezvous, failures).build();
}

}  // namespace tessera
