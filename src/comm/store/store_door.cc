#include "comm/store/store_door.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/socket/port_owner.h"

namespace tessera::wire {
namespace {

using asio::ip::tcp;

constexpr Door::Duration kStay{10};
constexpr size_t kMaxStrangers = 256;
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

std::deque<tcp::acceptor> listen(asio::io_context& io, const DoorOptions& options) {
  std::string where = "all addresses";
  try {
    std::deque<tcp::acceptor> acceptors;
    if (options.addresses.empty()) {
      acceptors.push_back(open_everywhere(io, static_cast<uint16_t>(options.port)));
    }
    for (const std::string& address : options.addresses) {
      where = address;
      // The same port on all addresses.
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

Door::Door(asio::io_context& io, const DoorOptions& options, Admit admit)
    : io_(io),
      key_(proof_key(options.secret, options.run_id)),
      admit_(std::move(admit)),
      acceptors_(listen(io, options)) {
  port_ = acceptors_.front().local_endpoint().port();
  for (tcp::acceptor& acceptor : acceptors_) accept(acceptor);
}

void Door::accept(tcp::acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](asio::error_code error, tcp::socket socket) {
    if (closed_) return;
    if (!error) {
      meet(std::move(socket));
      return accept(acceptor);
    }
    if (error == asio::error::no_descriptors && !std::exchange(has_warned_, true)) {
      log_warning("store: cannot accept connections from ranks: {}; raise 'ulimit -n'", error.message());
    }
    // Out of descriptors, or the connection ended meanwhile. The pause avoids a busy loop.
    auto pause = std::make_shared<asio::steady_timer>(io_, kPauseAfterError);
    pause->async_wait([this, &acceptor, pause](asio::error_code) {
      if (!closed_) accept(acceptor);
    });
  });
}

// Drops the oldest stranger of the address that has most.
void Door::make_room() {
  std::map<std::string_view, int64_t> num_of;
  for (const auto& [number, stranger] : strangers_) ++num_of[stranger.remote];
  const auto most = std::ranges::max_element(num_of, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find_if(
      strangers_, [most](const auto& entry) { return entry.second.remote == most->first; });
  oldest->second.channel->close();
  strangers_.erase(oldest);
}

void Door::meet(tcp::socket socket) {
  if (strangers_.size() >= kMaxStrangers) make_room();
  const uint64_t number = next_number_++;
  Stranger& stranger = strangers_[number];
  asio::error_code ignored;
  stranger.remote = address_text(socket.remote_endpoint(ignored).address());
  stranger.challenge = random_nonce();
  stranger.channel = std::make_shared<Channel>(std::move(socket), kMaxJoinBytes);
  stranger.channel->start(
      {.message = [this, number](const Header& header,
                                 std::string_view body) { on_message(number, header, body); },
       .closed =
           [this, number](const Ending& ending) {
             const auto found = strangers_.find(number);
             if (found == strangers_.end()) return;
             if (!ending.reason.empty()) {
               log_debug("store: connection from {} ended: {}", found->second.remote, ending.reason);
             }
             strangers_.erase(found);
           }});
  stranger.channel->send(Type::kChallenge, 0, encode_bytes(stranger.challenge));
}

void Door::on_message(uint64_t number, const Header& header, std::string_view body) {
  Stranger& stranger = strangers_.at(number);
  if (header.version != kVersion) {
    return refuse(stranger,
                  {.message = fmt::format("the store speaks version {} of its protocol, this program "
                                          "version {}: all nodes must run the same version of tessera",
                                          kVersion, header.version)});
  }
  if (!stranger.is_proved) return hear_proof(stranger, header, body);
  if (header.type != Type::kJoin && header.type != Type::kMeet) {
    fail(ExitCode::kBadData, "a request before joining");
  }
  const Entrant entrant = {.channel = stranger.channel,
                           .remote = stranger.remote,
                           .type = header.type,
                           .request = std::string(body)};
  if (const auto refusal = admit_(entrant)) return refuse(stranger, *refusal);
  strangers_.erase(number);
}

void Door::hear_proof(Stranger& stranger, const Header& header, std::string_view body) {
  if (header.type != Type::kProof) fail(ExitCode::kBadData, "a request without a proof");
  const auto proof = decode<Proof>(body);
  const Proofs expected = prove(key_, stranger.challenge, proof.nonce);
  stranger.is_proved = is_equal(proof.mac, expected.of_stranger);
  if (!stranger.is_proved) {
    return refuse(stranger, {.message = std::string(kUnprovedAdvice)});
  }
  stranger.channel->send(Type::kWelcome, 0, encode_bytes(expected.of_store));
}

void Door::refuse(Stranger& stranger, const Refusal& refusal) {
  if (!refusal.try_again && refusal.code != ExitCode::kDone) {
    refusals_.warn("store: refused " + stranger.remote, stranger.remote, refusal.message);
    last_refusal_ = refusal.message;
  }
  stranger.channel->send(Type::kRefused, 0, encode(refusal));
  stranger.channel->close_after_sending();
}

void Door::advance(Duration elapsed) {
  for (auto each = strangers_.begin(); each != strangers_.end();) {
    Stranger& stranger = each->second;
    stranger.age += elapsed;
    if (stranger.age >= kStay) stranger.channel->close();
    each = stranger.age >= kStay ? strangers_.erase(each) : std::next(each);
  }
}

void Door::close() {
  closed_ = true;
  asio::error_code ignored;
  for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
  for (auto& [number, stranger] : strangers_) stranger.channel->close_after_sending();
}

}  // namespace tessera::wire
