#include "comm/store/job_port.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/socket/port_owner.h"

namespace tessera::wire {
namespace {

using asio::ip::tcp;

constexpr JobPort::Duration kStay{10};
constexpr size_t kMaxPendingPeers = 256;
constexpr std::chrono::milliseconds kPauseAfterError{100};

tcp::acceptor open_acceptor(asio::io_context& io, const tcp::endpoint& endpoint, bool only_this_address) {
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(only_this_address));
  acceptor.bind(endpoint);
  acceptor.listen();
  return acceptor;
}

tcp::acceptor open_everywhere(asio::io_context& io, uint16_t port) {
  try {
    return open_acceptor(io, {asio::ip::address_v6::any(), port}, false);
  } catch (const asio::system_error& error) {
    // This machine has no IPv6.
    if (error.code() != asio::error::address_family_not_supported &&
        error.code() != std::errc::address_not_available) {
      throw;
    }
    return open_acceptor(io, {asio::ip::address_v4::any(), port}, false);
  }
}

std::deque<tcp::acceptor> listen(asio::io_context& io, const JobPortOptions& options) {
  std::string where = "all addresses";
  try {
    std::deque<tcp::acceptor> acceptors;
    if (options.addresses.empty()) {
      acceptors.push_back(open_everywhere(io, static_cast<uint16_t>(options.port)));
    }
    for (const std::string& address : options.addresses) {
      where = address;
      // All addresses use the same port.
      const int port = acceptors.empty() ? options.port : acceptors.front().local_endpoint().port();
      acceptors.push_back(
          open_acceptor(io, {asio::ip::make_address(address), static_cast<uint16_t>(port)}, true));
    }
    return acceptors;
  } catch (const asio::system_error& error) {
    if (error.code() == asio::error::address_in_use) {
      const std::string owner = describe_port_owner(options.port);
      fail(ExitCode::kBadConfig,
           "port {} is taken on this machine ({}){}: the store of the job cannot listen on it; end that "
           "program, or choose another port for all nodes (MASTER_PORT, --rdzv_endpoint HOST:PORT)",
           options.port, where, owner.empty() ? "" : " by " + owner);
    }
    fail(ExitCode::kBadConfig, "the store cannot listen on {}, port {}: {}", where, options.port,
         error.code().message());
  }
}

}  // namespace

JobPort::JobPort(asio::io_context& io, const JobPortOptions& options, Admit admit)
    : io_(io),
      key_(proof_key(options.secret, options.run_id)),
      admit_(std::move(admit)),
      acceptors_(listen(io, options)) {
  port_ = acceptors_.front().local_endpoint().port();
  for (tcp::acceptor& acceptor : acceptors_) accept(acceptor);
}

void JobPort::accept(tcp::acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](asio::error_code error, tcp::socket socket) {
    if (closed_) return;
    if (!error) {
      meet(std::move(socket));
      return accept(acceptor);
    }
    if (error == asio::error::no_descriptors && !std::exchange(has_warned_, true)) {
      log_warning("store: cannot accept connections from ranks: {}; raise 'ulimit -n'", error.message());
    }
    // The process is out of descriptors, or the connection has already ended. The pause avoids a busy loop.
    auto pause = std::make_shared<asio::steady_timer>(io_, kPauseAfterError);
    pause->async_wait([this, &acceptor, pause](asio::error_code) {
      if (!closed_) accept(acceptor);
    });
  });
}

// Drops the oldest peer of the address that has most.
void JobPort::make_room() {
  std::map<std::string_view, int64_t> num_of;
  for (const auto& [number, peer] : pending_) ++num_of[peer.remote];
  const auto most = std::ranges::max_element(num_of, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find_if(
      pending_, [most](const auto& entry) { return entry.second.remote == most->first; });
  oldest->second.channel->close();
  pending_.erase(oldest);
}

void JobPort::meet(tcp::socket socket) {
  if (pending_.size() >= kMaxPendingPeers) make_room();
  const uint64_t number = next_number_++;
  PendingPeer& peer = pending_[number];
  asio::error_code ignored;
  peer.remote = address_text(socket.remote_endpoint(ignored).address());
  peer.challenge = random_nonce();
  peer.channel = std::make_shared<Channel>(std::move(socket), kMaxJoinBytes);
  peer.channel->start({.message = [this, number](const Header& header,
                                                 std::string_view body) { on_message(number, header, body); },
                       .closed =
                           [this, number](const Ending& ending) {
                             const auto found = pending_.find(number);
                             if (found == pending_.end()) return;
                             if (!ending.reason.empty()) {
                               log_debug("store: connection from {} ended: {}", found->second.remote,
                                         ending.reason);
                             }
                             pending_.erase(found);
                           }});
  peer.channel->send(Type::kChallenge, 0, encode_bytes(peer.challenge));
}

void JobPort::on_message(uint64_t number, const Header& header, std::string_view body) {
  PendingPeer& peer = pending_.at(number);
  if (header.version != kVersion) {
    return refuse(peer, {.message = fmt::format("the store speaks version {} of its protocol, this program "
                                                "version {}: all nodes must run the same version of tessera",
                                                kVersion, header.version)});
  }
  if (!peer.is_proved) return hear_proof(peer, header, body);
  if (header.type != Type::kJoin && header.type != Type::kMeet) {
    fail(ExitCode::kBadData, "a request before joining");
  }
  const Entrant entrant = {
      .channel = peer.channel, .remote = peer.remote, .type = header.type, .request = std::string(body)};
  if (const auto refusal = admit_(entrant)) return refuse(peer, *refusal);
  pending_.erase(number);
}

void JobPort::hear_proof(PendingPeer& peer, const Header& header, std::string_view body) {
  if (header.type != Type::kProof) fail(ExitCode::kBadData, "a request without a proof");
  const auto proof = decode<Proof>(body);
  const Proofs expected = prove(key_, peer.challenge, proof.nonce);
  peer.is_proved = is_equal(proof.mac, expected.of_peer);
  if (!peer.is_proved) {
    return refuse(peer, {.message = std::string(kUnprovedAdvice)});
  }
  peer.channel->send(Type::kWelcome, 0, encode_bytes(expected.of_store));
}

void JobPort::refuse(PendingPeer& peer, const Refusal& refusal) {
  if (!refusal.try_again && refusal.code != ExitCode::kDone) {
    refusals_.warn("store: refused " + peer.remote, peer.remote, refusal.message);
    last_refusal_ = refusal.message;
  }
  peer.channel->send(Type::kRefused, 0, encode(refusal));
  peer.channel->close_after_sending();
}

void JobPort::advance(Duration elapsed) {
  for (auto each = pending_.begin(); each != pending_.end();) {
    PendingPeer& peer = each->second;
    peer.age += elapsed;
    if (peer.age >= kStay) peer.channel->close();
    each = peer.age >= kStay ? pending_.erase(each) : std::next(each);
  }
}

void JobPort::close() {
  closed_ = true;
  asio::error_code ignored;
  for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
  for (auto& [number, peer] : pending_) peer.channel->close_after_sending();
}

}  // namespace tessera::wire
