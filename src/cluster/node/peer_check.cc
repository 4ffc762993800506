#include "cluster/node/peer_check.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/socket/host_lookup.h"
#include "comm/socket/tcp_socket.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

using Clock = HostLookup::Clock;

constexpr double kMaxConnectMs = 100;
constexpr int kAttempts = 3;

struct Answer {
  int error = 0;  // errno; 0 and ECONNREFUSED are answers
  double ms = 0;
};

Answer connect_once(const std::string& address, int port, Clock::time_point limit) {
  const Stopwatch stopwatch;
  errno = 0;
  const UniqueFd socket = begin_connect(parse_address(address, port));
  if (!socket) return {errno, stopwatch.seconds() * 1e3};
  pollfd waiting = {socket.get(), POLLOUT, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
  if (::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(1, left))) != 1) return {ETIMEDOUT, 0};
  return {connect_result(socket), stopwatch.seconds() * 1e3};
}

Check check_peer(const Peer& peer, double seconds) {
  const std::string name = fmt::format("{}:{}", peer.host, peer.port);
  const auto begin = Clock::now();
  const auto limit =
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::string address;
  try {
    address = HostLookup::system().addresses_of(peer.host, limit).front();
  } catch (const Error& error) {
    return {.name = "peer",
            .outcome = CheckOutcome::kFailed,
            .message = fmt::format("{}: {}", name, error.what())};
  }
  Answer best;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Answer answer = connect_once(address, peer.port, limit);
    if (answer.error != 0 && answer.error != ECONNREFUSED) {
      return {.name = "peer",
              .outcome = CheckOutcome::kFailed,
              .message = fmt::format(
                  "{} ({}) does not answer: {}; check the node, its address and the network policy", name,
                  address, std::strerror(answer.error))};
    }
    if (attempt == 0 || answer.ms < best.ms) best = answer;
  }
  return at_most("peer", best.ms, kMaxConnectMs, "ms",
                 fmt::format("{} answers in {:.2g} ms{}{}", name, best.ms,
                             best.error == 0 ? "" : ", but nothing listens on the port yet",
                             best.ms > kMaxConnectMs ? ": too slow for training together" : ""));
}

}  // namespace

Peer parse_peer(const std::string& text) {
  const size_t colon = text.rfind(':');
  Peer peer;
  int64_t port = 0;
  if (colon != std::string::npos) {
    peer.host = text.substr(0, colon);
    if (peer.host.starts_with('[') && peer.host.ends_with(']'))
      peer.host = peer.host.substr(1, peer.host.size() - 2);
    port = parse_integer(std::string_view(text).substr(colon + 1)).value_or(0);
  }
  if (peer.host.empty() || port < 1 || port > 65535) {
    fail(ExitCode::kUsage, "--peers: expected HOST:PORT, found '{}'", printable(text));
  }
  peer.port = static_cast<int>(port);
  return peer;
}

std::vector<Check> check_peers(const std::vector<Peer>& peers, double seconds) {
  std::vector<Check> checks(peers.size());
  const auto guarded = [&](size_t i, const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      checks[i] = unknown("peer", fmt::format("{}: {}", peers[i].host, error.what()));
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < peers.size(); ++i) {
    guarded(i, [&] {  // the system may refuse a thread
      threads.push_back(start_background_thread(
          [&, i] { guarded(i, [&] { checks[i] = check_peer(peers[i], seconds); }); }));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return checks;
}

}  // namespace tessera
