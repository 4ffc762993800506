#include "launch/meeting/meeting_server.h"

#include <asio.hpp>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "comm/ranks/world.h"
#include "comm/store/job_port.h"
#include "comm/store/running_time.h"
#include "comm/store/store_channel.h"

namespace tessera {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;
using Duration = Meeting::Duration;
using std::chrono::milliseconds;

constexpr milliseconds kTick{50};

std::string describe_node(int wanted_rank, const std::string& host) {
  return wanted_rank < 0 ? fmt::format("a node on host {}", host)
                         : fmt::format("node {} on host {}", wanted_rank, host);
}

// In the notation of --nnodes.
std::string node_range(int low, int high) {
  return low == high ? std::to_string(low) : fmt::format("{}:{}", low, high);
}

}  // namespace

class MeetingServer::Impl {
 public:
  explicit Impl(const MeetingOptions& options);
  ~Impl();

  int port() const { return job_port_.port(); }
  std::optional<wire::Assignment> wait(milliseconds timeout);

 private:
  struct Peer {
    std::shared_ptr<wire::Channel> channel;
    wire::MeetRequest who;
    Duration quiet{0};
  };

  std::optional<wire::Refusal> admit(const wire::JobPort::Entrant& entrant);
  std::optional<wire::Refusal> objection(const wire::MeetRequest& request) const;
  void drop(uint64_t number);
  void tick();
  void find_silent(Duration elapsed);
  void assign();
  void give_up();
  std::string missing() const;
  std::string attendance() const;
  std::string advice() const;
  void say_who_is_there();

  const MeetingOptions options_;
  asio::io_context io_;
  wire::JobPort job_port_;
  asio::steady_timer timer_;
  const Clock::time_point begin_ = Clock::now();
  RunningTime running_time_{kTick};
  Duration since_heartbeat_{0};
  Clock::time_point next_notice_ = Clock::now() + wire::kFirstNotice;
  Meeting meeting_;
  std::map<uint64_t, Peer> peers_;
  uint64_t next_number_ = 1;
  bool over_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<wire::Assignment> assignment_;  // mutex_
  std::string failure_;                         // mutex_

  std::thread thread_;
};

MeetingServer::Impl::Impl(const MeetingOptions& options)
    : options_(options),
      job_port_(io_,
                {.addresses = options.bind_addresses,
                 .port = options.port,
                 .secret = options.secret,
                 .run_id = options.run_id},
                [this](const wire::JobPort::Entrant& entrant) { return admit(entrant); }),
      timer_(io_),
      meeting_(options.terms) {
  tick();
  thread_ = wire::run_in_thread(io_);
}

MeetingServer::Impl::~Impl() {
  asio::post(io_, [this] {
    if (!over_) {
      const wire::Refusal farewell = {
          .code = ExitCode::kTryAgain,
          .message =
              fmt::format("the agent of node 0 on host {} has ended while the nodes met", options_.host)};
      for (auto& [number, peer] : peers_) peer.channel->send(Type::kRefused, 0, wire::encode(farewell));
    }
    over_ = true;
    job_port_.close();
    for (auto& [number, peer] : peers_) peer.channel->close_after_sending();
    wire::end_when(io_, timer_, [this] { return peers_.empty() && job_port_.is_empty(); });
  });
  thread_.join();
}

std::optional<wire::Refusal> MeetingServer::Impl::objection(const wire::MeetRequest& request) const {
  const std::string who = describe_node(request.wanted_rank, request.host);
  const auto refuse = [](const std::string& message) { return wire::Refusal{.message = message}; };
  const MeetingTerms& terms = options_.terms;
  if (request.min_nodes != terms.min_nodes || request.max_nodes != terms.max_nodes) {
    return refuse(fmt::format(
        "{} was started with --nnodes {}, node 0 with {}: use the same value on all nodes", who,
        node_range(request.min_nodes, request.max_nodes), node_range(terms.min_nodes, terms.max_nodes)));
  }
  if (request.local_world_size != options_.local_world_size) {
    return refuse(fmt::format(
        "{} has {}, node 0 on host {} has {}: all nodes must have the same number "
        "(--nproc_per_node)",
        who, count_of(request.local_world_size, "rank"), options_.host, options_.local_world_size));
  }
  for (const auto& [number, peer] : peers_) {
    if (request.wanted_rank < 0 || peer.who.wanted_rank != request.wanted_rank) continue;
    // Allow time to find out whether the other one is gone.
    return wire::Refusal{
        .try_again = peer.quiet > 3 * Duration(options_.timing.heartbeat),
        .message = fmt::format("{} (process {}) and {} (process {}) both claim to be node {}: give "
                               "each node a --node_rank of its own",
                               who, request.pid, describe_node(request.wanted_rank, peer.who.host),
                               peer.who.pid, request.wanted_rank)};
  }
  if (request.wanted_rank == 0) {
    return refuse(
        fmt::format("{} and host {} both claim to be node 0: give each node a --node_rank of its own", who,
                    options_.host));
  }
  if (meeting_.num_present() == terms.max_nodes) {
    return wire::Refusal{.try_again = true,
                         .code = ExitCode::kTryAgain,
                         .message = terms.max_nodes == 1
                                        ? "the only node has already joined"
                                        : fmt::format("{} nodes have already joined", terms.max_nodes)};
  }
  return std::nullopt;
}

std::optional<wire::Refusal> MeetingServer::Impl::admit(const wire::JobPort::Entrant& entrant) {
  if (entrant.type == Type::kJoin) {
    return wire::Refusal{
        .try_again = true, .code = ExitCode::kTryAgain, .message = "the nodes of the job are still meeting"};
  }
  const wire::MeetRequest request = wire::decode<wire::MeetRequest>(entrant.request);
  if (const auto refusal = objection(request)) return refusal;
  const uint64_t number = next_number_++;
  Peer& peer = peers_[number];
  peer.channel = entrant.channel;
  peer.who = request;
  peer.channel->set_handlers({.message =
                                  [this, number](const wire::Header& header, std::string_view) {
                                    if (header.type != Type::kHeartbeat)
                                      fail(ExitCode::kBadData, "a request before the start");
                                    peers_.at(number).quiet = Duration(0);
                                  },
                              .closed = [this, number](const wire::Ending&) { drop(number); }});
  peer.channel->send(Type::kAccepted, 0, {});
  meeting_.arrive(number, {.wanted_rank = request.wanted_rank, .former_rank = request.former_rank});
  return std::nullopt;
}

void MeetingServer::Impl::drop(uint64_t number) {
  peers_.erase(number);
  if (!over_) meeting_.leave(number);
}

void MeetingServer::Impl::tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](asio::error_code error) {
    if (error || over_) return;
    const Duration elapsed = running_time_.advance();
    job_port_.advance(elapsed);
    find_silent(elapsed);
    meeting_.advance(elapsed);
    if (meeting_.is_complete()) return assign();
    if (meeting_.has_failed()) return give_up();
    say_who_is_there();
    since_heartbeat_ += elapsed;
    if (since_heartbeat_ >= options_.timing.heartbeat) {
      since_heartbeat_ = Duration(0);
      for (const auto& [number, peer] : peers_) peer.channel->send(Type::kHeartbeat, 0, {});
    }
    tick();
  });
}

void MeetingServer::Impl::find_silent(Duration elapsed) {
  std::vector<uint64_t> overdue;
  for (auto& [number, peer] : peers_) {
    peer.quiet += elapsed;
    if (peer.quiet >= Duration(options_.timing.silence)) overdue.push_back(number);
  }
  for (const uint64_t number : overdue) {
    peers_.at(number).channel->close();
    drop(number);
  }
}

void MeetingServer::Impl::assign() {
  over_ = true;
  wire::Assignment assignment = {.restart_count = options_.restart_count,
                                 .node_rank = 0,
                                 .num_nodes = meeting_.num_present(),
                                 .num_failures = options_.num_failures};
  const wire::Assignment own = assignment;
  for (const uint64_t number : meeting_.order()) {
    ++assignment.node_rank;
    peers_.at(number).channel->send(Type::kAssigned, 0, wire::encode(assignment));
  }
  {
    const std::lock_guard lock(mutex_);
    assignment_ = own;
  }
  changed_.notify_all();
}

// Lists nodes by the numbers they claim: "node 2 of 4 has", "nodes 1-2 of 2:4 have".
std::string MeetingServer::Impl::missing() const {
  const MeetingTerms& terms = options_.terms;
  std::vector<int> numbers;
  for (int node = 1; node < terms.max_nodes; ++node) {
    const bool is_there = std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
      return entry.second.who.wanted_rank == node;
    });
    if (!is_there) numbers.push_back(node);
  }
  const bool is_one = numbers.size() == 1;
  return fmt::format("{} {} of {} {}", is_one ? "node" : "nodes", format_ranks(numbers),
                     node_range(terms.min_nodes, terms.max_nodes), is_one ? "has" : "have");
}

// "node 0 on host a, node 2 on host c; refused: ..."
std::string MeetingServer::Impl::attendance() const {
  std::string joined = describe_node(0, options_.host);
  for (const auto& [number, peer] : peers_)
    joined += ", " + describe_node(peer.who.wanted_rank, peer.who.host);
  return job_port_.last_refusal().empty() ? joined : joined + "; refused: " + job_port_.last_refusal();
}

// No advice after a refusal, which already says what to do.
std::string MeetingServer::Impl::advice() const {
  if (!job_port_.last_refusal().empty()) return "";
  const MeetingTerms& terms = options_.terms;
  return fmt::format(
      "; check that tessera launch is running there with its --node_rank, --nnodes {} and the same "
      "--rdzv_endpoint, and that port {} of host {} can be reached from there (name, firewall)",
      node_range(terms.min_nodes, terms.max_nodes), job_port_.port(), options_.host);
}

void MeetingServer::Impl::say_who_is_there() {
  if (Clock::now() < next_notice_ || meeting_.num_present() >= options_.terms.min_nodes) return;
  next_notice_ = Clock::now() + wire::kNextNotice;
  log_warning("{} not joined after {:.0f} s; joined: {}{}", missing(),
              Duration(Clock::now() - begin_).count(), attendance(), advice());
}

void MeetingServer::Impl::give_up() {
  over_ = true;
  const std::string message = fmt::format("{} not joined after {:.3g} s; joined: {}{}", missing(),
                                          options_.terms.timeout.count(), attendance(), advice());
  for (auto& [number, peer] : peers_) {
    peer.channel->send(Type::kRefused, 0,
                       wire::encode(wire::Refusal{.code = ExitCode::kTryAgain, .message = message}));
  }
  {
    const std::lock_guard lock(mutex_);
    failure_ = message;
  }
  changed_.notify_all();
}

std::optional<wire::Assignment> MeetingServer::Impl::wait(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return assignment_ || !failure_.empty(); });
  if (!failure_.empty()) throw Error(ExitCode::kTryAgain, failure_);
  return assignment_;
}

MeetingServer::MeetingServer(const MeetingOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MeetingServer::~MeetingServer() = default;
int MeetingServer::port() const { return impl_->port(); }
std::optional<wire::Assignment> MeetingServer::wait(milliseconds timeout) { return impl_->wait(timeout); }

}  // namespace tessera
