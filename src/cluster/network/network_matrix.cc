#include "cluster/network/network_matrix.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/median.h"
#include "base/memory.h"
#include "comm/socket/tcp_socket.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPairTimeout{10'000};
constexpr int kPings = 51;
constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr int64_t kFirstBytes = int64_t{64} << 10;
constexpr int64_t kMaxBurstBytes = int64_t{64} << 30;

// One connection of a pair, both of whose sides do the same in turn.
class Flow {
 public:
  virtual ~Flow() = default;
  virtual void send(std::span<std::byte> data) = 0;
  virtual void receive(std::span<std::byte> data) = 0;

  void send_number(int64_t number) { send(std::as_writable_bytes(std::span(&number, 1))); }
  int64_t receive_number() {
    int64_t number = 0;
    receive(std::as_writable_bytes(std::span(&number, 1)));
    return number;
  }
};

class TransportFlow : public Flow {
 public:
  explicit TransportFlow(NetworkGroup& group) : group_(group) {}
  void send(std::span<std::byte> data) override {
    group_.wait(group_.broadcast(data, group_.index(), {"benchmark"}));
  }
  void receive(std::span<std::byte> data) override {
    group_.wait(group_.broadcast(data, 1 - group_.index(), {"benchmark"}));
  }

 private:
  NetworkGroup& group_;
};

class TcpFlow : public Flow {
 public:
  explicit TcpFlow(UniqueFd socket) : socket_(std::move(socket)) {}

  void send(std::span<std::byte> data) override {
    transfer(data, POLLOUT,
             [](int fd, std::byte* at, size_t size) { return ::send(fd, at, size, MSG_NOSIGNAL); });
  }
  void receive(std::span<std::byte> data) override {
    transfer(data, POLLIN, [](int fd, std::byte* at, size_t size) { return ::recv(fd, at, size, 0); });
  }
  static void wait_for(const UniqueFd& socket, short event) {
    pollfd waiting = {socket.get(), event, 0};
    if (::poll(&waiting, 1, static_cast<int>(kPairTimeout.count())) != 1)
      fail(ExitCode::kTryAgain, "no answer over TCP");
  }

 private:
  template <typename Call>
  void transfer(std::span<std::byte> data, short event, const Call& call) {
    while (!data.empty()) {
      const ssize_t count = call(socket_.get(), data.data(), data.size());
      if (count > 0) {
        data = data.subspan(static_cast<size_t>(count));
      } else if (count < 0 && errno == EAGAIN) {
        wait_for(socket_, event);
      } else if (count == 0 || errno != EINTR) {
        fail(ExitCode::kTryAgain, "a TCP connection was lost");
      }
    }
  }

  UniqueFd socket_;
};

// The side with the lower number connects.
UniqueFd connect_pair(Rendezvous& store, const std::string& key, bool connects) {
  if (!connects) {
    const UniqueFd listener = listen_on(store.local_address(), 0);
    store.set(key, fmt::format("{} {}", local_port(listener), store.local_address()));
    TcpFlow::wait_for(listener, POLLIN);
    return accept_from(listener);
  }
  const std::string text = store.get(key, kPairTimeout);
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || *end != ' ')
    fail(ExitCode::kTryAgain, "{}: expected a port and an address", key);
  UniqueFd socket = begin_connect(parse_address(std::string(end + 1), port));
  if (socket) TcpFlow::wait_for(socket, POLLOUT);
  if (!socket || connect_result(socket) != 0) fail(ExitCode::kTryAgain, "no connection over TCP");
  return socket;
}

// Sends for about `seconds`: amounts grow until one takes long enough to tell how much that is. Announces
// each amount, then waits until it has arrived.
double sending_gbit_per_s(Flow& flow, std::span<std::byte> buffer, double seconds) {
  double rate = 0;  // bytes per second
  bool is_last = false;
  for (auto bytes = kFirstBytes; !is_last;) {
    const Stopwatch stopwatch;
    flow.send_number(bytes);
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      flow.send(buffer.first(static_cast<size_t>(std::min(kChunkBytes, bytes - at))));
    }
    flow.receive_number();
    const double taken = stopwatch.seconds();
    rate = static_cast<double>(bytes) / taken;
    is_last = taken >= seconds / 2 || bytes >= kMaxBurstBytes;
    const auto wanted = static_cast<int64_t>(std::min(1e12, rate * seconds));
    bytes = std::min(taken >= seconds / 8 ? std::max(bytes, wanted) : 4 * bytes, kMaxBurstBytes);
  }
  flow.send_number(0);
  return rate * 8 / 1e9;
}

void receive_all(Flow& flow, std::span<std::byte> buffer) {
  for (int64_t bytes; (bytes = flow.receive_number()) > 0;) {
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      flow.receive(buffer.first(static_cast<size_t>(std::min(kChunkBytes, bytes - at))));
    }
    flow.send_number(bytes);
  }
}

// In both directions, the lower node first; 0 for the direction in which this side receives.
double measure_directions(Flow& flow, std::span<std::byte> buffer, bool is_lower, double seconds) {
  if (!is_lower) receive_all(flow, buffer);
  const double speed = sending_gbit_per_s(flow, buffer, seconds);
  if (is_lower) receive_all(flow, buffer);
  return speed;
}

double measure_latency_us(Flow& flow, bool is_lower) {
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    const Stopwatch stopwatch;
    if (is_lower) {
      flow.send_number(i);
      flow.receive_number();
    } else {
      flow.receive_number();
      flow.send_number(i);
    }
    times.push_back(stopwatch.seconds() * 1e6 / 2);
  }
  return median(std::move(times));
}

class MatrixMeasurement {
 public:
  MatrixMeasurement(Communicator& comm, const NetworkMatrixOptions& options)
      : comm_(comm), options_(options), world_(comm.world()), buffer_(kChunkBytes) {
    matrix_.gbit_per_s = matrix_.tcp_gbit_per_s = matrix_.latency_us = matrix_.unreachable =
        LinkMatrix(world_.num_nodes);
    for (int node = 0; node < world_.num_nodes; ++node)
      matrix_.hosts.push_back(comm.store()->host(rank_on(node)));
  }

  NetworkMatrix measure() {
    const PatientScope patience(comm_);  // of those who have no partner
    run_rounds([](int, int) { return true; }, options_.seconds);
    NetworkMatrix all = sum_over_ranks();
    for (attempt_ = 1; attempt_ <= kRepeats; ++attempt_) {
      LinkMatrix suspects(world_.num_nodes);
      bool is_any = false;
      const auto suspect = [&](const std::vector<SlowLink>& links) {
        for (const SlowLink& link : links) {
          suspects.at(link.from, link.to) = suspects.at(link.to, link.from) = 1;
          is_any = true;
        }
      };
      suspect(links_below(all.gbit_per_s, options_.min_share, options_.min_gbit_per_s));
      suspect(links_below(rates_of_latencies(all.latency_us), 1 / kSlowLatencyFactor));
      if (!is_any) break;
      run_rounds([&](int a, int b) { return suspects.at(a, b) > 0; }, kLonger * options_.seconds);
      all = sum_over_ranks();
    }
    return all;
  }

 private:
  static constexpr int kRepeats = 2;
  static constexpr double kLonger = 2;

  int rank_on(int node) const { return node * world_.local_world_size; }

  // All ranks decide alike which pairs are wanted.
  template <typename Wanted>
  void run_rounds(const Wanted& wanted, double seconds) {
    const int all = num_rounds(world_.num_nodes);
    const int rounds = options_.max_rounds > 0 ? std::min(all, options_.max_rounds) : all;
    for (int round = 0; round < rounds; ++round) {
      comm_.barrier({"round of pairs", round});
      const int partner = partner_of(world_.node_rank, round, world_.num_nodes);
      if (world_.local_rank == 0 && partner >= 0 && wanted(world_.node_rank, partner))
        try_pair(round, partner, seconds);
    }
  }

  NetworkMatrix sum_over_ranks() {
    NetworkMatrix all = matrix_;
    for (LinkMatrix* each : {&all.gbit_per_s, &all.tcp_gbit_per_s, &all.latency_us, &all.unreachable}) {
      comm_.sum(each->values(), {"figures of all links"});
    }
    return all;
  }

  void try_pair(int round, int partner, double seconds) {
    try {
      measure_pair(round, partner, seconds);
    } catch (const Error& error) {
      comm_.failures().check();  // the job has failed, not the link
      matrix_.unreachable.at(world_.node_rank, partner) = 1;
      log_warning("node {} on {}: {}", partner, matrix_.hosts[static_cast<size_t>(partner)], error.what());
    }
  }

  void measure_pair(int round, int partner, double seconds) {
    const int own = world_.node_rank;
    const bool is_lower = own < partner;
    const std::string name = fmt::format("pair {} of round {}.{}", std::min(own, partner), attempt_, round);
    const std::span<std::byte> buffer = buffer_.as<std::byte>();
    {
      FailureDetector failures;  // of this link alone
      NetworkGroup group(name, {rank_on(std::min(own, partner)), rank_on(std::max(own, partner))},
                         world_.rank, comm_.store(),
                         {.timeout = kPairTimeout, .connections = options_.connections}, failures);
      TransportFlow flow(group);
      double& latency = matrix_.latency_us.at(own, partner);
      const double measured = measure_latency_us(flow, is_lower);
      latency = latency > 0 ? std::min(latency, measured) : measured;
      keep_better(matrix_.gbit_per_s.at(own, partner), measure_directions(flow, buffer, is_lower, seconds));
    }
    if (!options_.plain_tcp) return;
    TcpFlow flow(connect_pair(*comm_.store(), "matrix/" + name, is_lower));
    keep_better(matrix_.tcp_gbit_per_s.at(own, partner), measure_directions(flow, buffer, is_lower, seconds));
  }
  static void keep_better(double& best, double speed) { best = std::max(best, speed); }

  Communicator& comm_;
  const NetworkMatrixOptions& options_;
  const World& world_;
  PageBuffer buffer_;
  NetworkMatrix matrix_;  // what this rank has measured
  int attempt_ = 0;
};

}  // namespace

NetworkMatrix measure_network(Communicator& comm, const NetworkMatrixOptions& options) {
  return MatrixMeasurement(comm, options).measure();
}

}  // namespace tessera
