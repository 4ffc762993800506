#include "comm/network/fabric/fabric_mesh.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/network/fabric/fabric_choice.h"
#include "comm/network/fabric/fabric_device.h"
#include "comm/network/fabric/fabric_link.h"
#include "comm/network/link/network_handshake.h"

namespace tessera {
namespace {

using FabricClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::microseconds kHandshakeInterval{200};

// Numbers of the messages of a handshake.
constexpr uint64_t kChallengeNumber = 0, kResponseNumber = 1, kWelcomeNumber = 2;

// "" = it is none.
std::string from_hex(const std::string& text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) return {};
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

// The payload of a handshake.
struct HandshakeValues {
  Challenge challenge;
  Response response;
  Welcome welcome;
};

struct HandshakeTransfer {
  FabricOp op;
  bool is_posted = false;

  bool is_done() const { return op.state == FabricOp::State::kDone; }
};

// The two members' proofs over one endpoint. The one with the lower index sends the challenge.
class FabricHandshake {
 public:
  struct Pair {
    int me;
    int peer;
    fi_addr_t address;
    int lane;
  };
  FabricHandshake(FabricEndpoint& endpoint, const FabricTags& tags, const Pair& pair, const Mac& key,
                  const Listener& listener, HandshakeValues& values)
      : endpoint_(endpoint), tags_(tags), pair_(pair), key_(key), listener_(listener), values_(values) {}

  bool is_done() const { return is_done_; }
  int peer() const { return pair_.peer; }

  // Posts and checks what it can; the reason why the peer is none, "" = so far it may be one.
  std::string advance() { return pair_.me < pair_.peer ? advance_listener() : advance_connector(); }

 private:
  template <typename T>
  bool send(HandshakeTransfer& transfer, const T& value, uint64_t number) {
    if (!transfer.is_posted) {
      transfer.is_posted =
          endpoint_.post_send(transfer.op, pair_.address, std::as_bytes(std::span(&value, 1)),
                              tags_.tag(FabricTags::Kind::kHandshake, pair_.me, number));
    }
    return transfer.is_done();
  }
  template <typename T>
  bool receive(HandshakeTransfer& transfer, T& value, uint64_t number) {
    if (!transfer.is_posted) {
      transfer.is_posted =
          endpoint_.post_receive(transfer.op, std::as_writable_bytes(std::span(&value, 1)),
                                 tags_.tag(FabricTags::Kind::kHandshake, pair_.peer, number));
    }
    return transfer.is_done();
  }

  std::string failure() const {
    for (const HandshakeTransfer* transfer : {&challenge_, &response_, &welcome_}) {
      if (transfer->op.state == FabricOp::State::kFailed) return fabric_error(transfer->op.error);
    }
    return {};
  }

  std::string advance_listener() {
    if (!challenge_.is_posted) values_.challenge = make_challenge(random_nonce());
    const bool is_asked = send(challenge_, values_.challenge, kChallengeNumber);
    if (!receive(response_, values_.response, kResponseNumber) || !is_asked) return failure();
    if (!welcome_.is_posted) {
      const Response& response = values_.response;
      if (!is_response_to(values_.challenge, response, listener_, key_) || response.from != pair_.peer ||
          response.connection != pair_.lane) {
        return "it does not prove that it knows the job's secret";
      }
      values_.welcome = make_welcome(values_.challenge, response, key_);
    }
    is_done_ = send(welcome_, values_.welcome, kWelcomeNumber);
    return failure();
  }

  std::string advance_connector() {
    const bool is_welcomed = receive(welcome_, values_.welcome, kWelcomeNumber);
    if (!receive(challenge_, values_.challenge, kChallengeNumber)) return failure();
    if (!response_.is_posted) {
      if (!is_challenge(values_.challenge)) return "its challenge is damaged";
      values_.response = make_response(
          values_.challenge,
          {.from = pair_.me, .to = pair_.peer, .connection = pair_.lane, .nonce = random_nonce()}, key_);
    }
    if (!send(response_, values_.response, kResponseNumber) || !is_welcomed) return failure();
    if (!is_welcome(values_.welcome, values_.challenge, values_.response, key_)) {
      return "it does not prove that it knows the job's secret";
    }
    is_done_ = true;
    return {};
  }

  FabricEndpoint& endpoint_;
  const FabricTags tags_;
  const Pair pair_;
  const Mac key_;
  const Listener listener_;
  HandshakeValues& values_;
  bool is_done_ = false;
  HandshakeTransfer challenge_, response_, welcome_;
};

class FabricMeshBuilder {
 public:
  FabricMeshBuilder(const Members& members, const std::string& group, const NetworkOptions& options,
                    Rendezvous& rendezvous, FailureDetector& failures, Mesh mesh)
      : members_(members),
        group_(group),
        options_(options),
        rendezvous_(rendezvous),
        failures_(failures),
        mesh_(std::move(mesh)),
        deadline_(FabricClock::now() + options.timeout) {
    const Mac secret = hmac_sha256(text_of(mesh_.key), {"fabric tags"});
    uint64_t tag_secret = 0;
    std::memcpy(&tag_secret, secret.data(), sizeof(tag_secret));
    tags_ = FabricTags(tag_secret);
    key_ = hmac_sha256(text_of(mesh_.key), {"fabric handshake", options.fabric.provider});
  }

  std::vector<std::unique_ptr<LaneLink>> build() {
    const std::string problem = fabric_device_problem(
        options_.fabric.provider,
        options_.connections * FabricLink::registered_bytes(options_.fabric.provider), this_fabric_machine());
    if (!problem.empty()) fail(ExitCode::kBadConfig, "{}", problem);
    open_endpoints();
    read_addresses();
    shake_hands();
    std::vector<std::unique_ptr<LaneLink>> links;
    for (size_t lane = 0; lane < endpoints_.size(); ++lane) {
      links.push_back(std::make_unique<FabricLink>(
          std::move(endpoints_[lane]),
          FabricPeers{members_.index, tags_, std::move(addresses_[lane]), std::move(mesh_.sockets[lane])},
          is_staged_));
    }
    return links;
  }

 private:
  std::string member_key(int member) const {
    return group_key(group_, fmt::format("{}/fabric", members_.ranks[static_cast<size_t>(member)]));
  }
  const std::string& name(int member) const { return members_.names[static_cast<size_t>(member)]; }

  void open_endpoints() {
    const std::string address =
        is_fabric_addressed_by_ip(options_.fabric.provider) ? rendezvous_.local_address() : std::string();
    std::string published;
    for (int lane = 0; lane < options_.connections; ++lane) {
      endpoints_.push_back(
          std::make_unique<FabricEndpoint>(options_.fabric.provider, address, lane, members_.size()));
      published += hex(endpoints_.back()->address()) + " ";
    }
    rendezvous_.set(member_key(members_.index), published);
  }

  void read_addresses() {
    addresses_.assign(endpoints_.size(), std::vector<fi_addr_t>(members_.ranks.size(), FI_ADDR_UNSPEC));
    for (int member = 0; member < members_.size(); ++member) {
      if (member == members_.index) continue;
      const auto left =
          std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline_ - FabricClock::now()));
      const std::string text = failures_.blame_at_deadline(
          members_.ranks[static_cast<size_t>(member)],
          fmt::format("{} has not opened fabric {} within {:.3g} s of {} (group {})", name(member),
                      options_.fabric.provider, seconds(), name(members_.index), group_),
          [&] { return rendezvous_.get(member_key(member), left); });
      std::istringstream fields(text);
      for (size_t lane = 0; lane < endpoints_.size(); ++lane) {
        std::string digits;
        fields >> digits;
        const std::string address = from_hex(digits);
        TESSERA_CHECK(!address.empty(), "the store has '{}' for {}", text, name(member));
        addresses_[lane][static_cast<size_t>(member)] = endpoints_[lane]->add_peer(address);
      }
    }
  }

  void begin_handshakes() {
    const Listener listener = {members_.index, members_.size(), options_.connections};
    for (size_t lane = 0; lane < endpoints_.size(); ++lane) {
      const auto bytes = static_cast<int64_t>(members_.ranks.size() * sizeof(HandshakeValues));
      PageBuffer& values = handshake_values_.emplace_back(bytes);
      if (is_staged_) endpoints_[lane]->register_memory(values.as<std::byte>());
      for (int member = 0; member < members_.size(); ++member) {
        if (member == members_.index) continue;
        handshakes_.emplace_back(
            *endpoints_[lane], tags_,
            FabricHandshake::Pair{members_.index, member, addresses_[lane][static_cast<size_t>(member)],
                                  static_cast<int>(lane)},
            key_, listener, values.as<HandshakeValues>()[static_cast<size_t>(member)]);
      }
    }
  }

  void shake_hands() {
    begin_handshakes();
    for (;;) {
      const FabricHandshake* missing = nullptr;
      for (FabricHandshake& handshake : handshakes_) {
        if (handshake.is_done()) continue;
        const std::string problem = handshake.advance();
        if (!problem.empty()) fail_with(handshake.peer(), problem);
        if (!handshake.is_done() && missing == nullptr) missing = &handshake;
      }
      if (missing == nullptr) break;
      failures_.check();
      if (FabricClock::now() > deadline_) fail_at_deadline(missing->peer());
      int num_ended = 0;
      for (const std::unique_ptr<FabricEndpoint>& endpoint : endpoints_) num_ended += endpoint->progress();
      if (num_ended == 0) std::this_thread::sleep_for(kHandshakeInterval);
    }
    for (size_t lane = 0; lane < endpoints_.size(); ++lane) {
      endpoints_[lane]->forget_memory(handshake_values_[lane].as<std::byte>());
    }
  }

  double seconds() const { return std::chrono::duration<double>(options_.timeout).count(); }

  [[noreturn]] void fail_with(int member, const std::string& problem) {
    failures_.fail_because(
        members_.ranks[static_cast<size_t>(member)],
        fmt::format("{} did not connect with {} over fabric {} (group {}): {}", name(member),
                    name(members_.index), options_.fabric.provider, group_, problem));
  }

  [[noreturn]] void fail_at_deadline(int member) {
    failures_.fail_because(
        members_.ranks[static_cast<size_t>(member)],
        fmt::format("{} did not answer {} over fabric {} within {:.1f} s (group {}), although TCP between "
                    "them works: check that the fabric reaches from one to the other (efa: a security group "
                    "that is open to itself in both directions), or use --fabric tcp",
                    name(member), name(members_.index), options_.fabric.provider, seconds(), group_));
  }

  const Members& members_;
  const std::string& group_;
  const NetworkOptions& options_;
  Rendezvous& rendezvous_;
  FailureDetector& failures_;
  Mesh mesh_;
  const FabricClock::time_point deadline_;
  const bool is_staged_ = !fabric_moves_in_calls_only(options_.fabric.provider);
  FabricTags tags_;
  Mac key_{};
  // Endpoints are closed before what their transfers use.
  std::vector<PageBuffer> handshake_values_;  // [lane], HandshakeValues by member
  std::deque<FabricHandshake> handshakes_;
  std::vector<std::unique_ptr<FabricEndpoint>> endpoints_;  // [lane]
  std::vector<std::vector<fi_addr_t>> addresses_;           // [lane][member]
};

}  // namespace

std::vector<std::unique_ptr<LaneLink>> connect_fabric(const Members& members, const std::string& group,
                                                      const NetworkOptions& options, Rendezvous& rendezvous,
                                                      FailureDetector& failures, Mesh mesh) {
  return FabricMeshBuilder(members, group, options, rendezvous, failures, std::move(mesh)).build();
}

}  // namespace tessera
