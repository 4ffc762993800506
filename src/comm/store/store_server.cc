#include "comm/store/store_server.h"

#include <algorithm>

#include "base/error.h"
#include "comm/store/store_server_impl.h"

namespace tessera {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;
using Duration = Verdict::Duration;

// The interval at which to check whether the nodes have reported.
constexpr std::chrono::milliseconds kScanInterval{5};
// A waiting node asks every 0.2 s, over a connection that may be slow.
constexpr std::chrono::milliseconds kStillWaiting{2'000};

}  // namespace

std::string describe_member(MemberId id, const std::string& host) {
  return id.is_agent ? fmt::format("the agent of node {} on host {}", id.index, host)
                     : describe_rank(id.index, host);
}

StoreServer::Impl::Impl(const StoreServerOptions& options)
    : options_(options),
      job_port_(io_,
                {.addresses = options.bind_addresses,
                 .port = options.port,
                 .secret = options.secret,
                 .run_id = options.run_id},
                [this](const wire::JobPort::Entrant& entrant) { return admit(entrant); }),
      timer_(io_),
      // Fine enough to distinguish 5.0 s from 5.1 s, coarse enough to cost nothing.
      tick_(std::min<std::chrono::nanoseconds>(options.timing.heartbeat / 5, std::chrono::milliseconds(50))),
      running_time_(tick_),
      values_([this](const auto& waiter, const std::string& value) { send_value(waiter, value); }),
      reports_([this](const auto& waiter, const std::string& value) { send_value(waiter, value); }),
      verdict_(options.timing.lost_grace, options.timing.suspicion_grace) {
  tick();
  thread_ = wire::run_in_thread(io_);
}

StoreServer::Impl::~Impl() {
  asio::post(io_, [this] {
    closing_ = true;
    job_port_.close();
    for (auto& [number, peer] : peers_) peer.channel->close_after_sending();
    wire::end_when(io_, timer_, [this] { return peers_.empty() && job_port_.is_empty(); });
  });
  thread_.join();
}

void StoreServer::Impl::tick() {
  timer_.expires_after(tick_);
  timer_.async_wait([this](asio::error_code error) {
    if (error || closing_) return;
    const Duration elapsed = running_time_.advance();
    since_heartbeat_ += elapsed;
    if (since_heartbeat_ >= options_.timing.heartbeat) {
      since_heartbeat_ = Duration(0);
      for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kHeartbeat, 0, {});
    }
    job_port_.advance(elapsed);
    find_silent(elapsed);
    find_missing_agents(elapsed);
    form_when_complete();
    verdict_.advance(elapsed);
    announce_verdict();
    tick();
  });
}

void StoreServer::Impl::find_silent(Duration elapsed) {
  std::vector<uint64_t> overdue;
  for (auto& [number, peer] : peers_) {
    peer.quiet += elapsed;
    if (peer.quiet >= Duration(options_.timing.silence)) overdue.push_back(number);
  }
  for (const uint64_t number : overdue) {
    Peer& peer = peers_.at(number);
    if (is_seated(number, peer) && is_relied_on(peer.id)) {
      verdict_.silent(peer.id, describe_silence(peer));
    } else {
      vacate(number, peer);
      peer.channel->close();
      peers_.erase(number);
    }
  }
}

// Whether the job fails when this member ends: true for members of a complete job, and for expected agents.
bool StoreServer::Impl::is_relied_on(MemberId id) const {
  return formed_ || (id.is_agent && options_.num_agents > 0);
}

Failure StoreServer::Impl::describe_silence(const Peer& peer) const {
  const int rank = peer.id.is_agent ? -1 : peer.id.index;
  int on_node = 0;
  bool all_quiet = true;
  for (const auto& [id, number] : seats_) {
    const Peer& other = peers_.at(number);
    if (other.who.node_rank != peer.who.node_rank) continue;
    ++on_node;
    all_quiet = all_quiet && other.quiet > Duration(options_.timing.silence) / 2;
  }
  const double seconds = Duration(options_.timing.silence).count();
  if (on_node > 1 && all_quiet) {
    return {
        .rank = rank,
        .host = peer.who.host,
        .message = fmt::format("node {} on host {}: all of it silent for {:.1f} s (machine or network down?)",
                               peer.who.node_rank, peer.who.host, seconds),
        .is_disruption = true};
  }
  return {.rank = rank,
          .host = peer.who.host,
          .message = fmt::format("{}: silent for {:.1f} s", describe_member(peer.id, peer.who.host), seconds),
          .is_disruption = true};
}

void StoreServer::Impl::on_message(uint64_t number, const wire::Header& header, std::string_view body) {
  Peer& peer = peers_.at(number);
  peer.quiet = Duration(0);
  if (peer.id.is_agent) reports_.heard(peer.id.index);
  serve(number, peer, header, body);
}

void StoreServer::Impl::on_closed(uint64_t number, const wire::Ending& ending) {
  const auto found = peers_.find(number);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  if (!closing_ && is_seated(number, peer) && is_relied_on(peer.id)) {
    verdict_.lost(peer.id, peer.who.node_rank,
                  {.rank = peer.id.is_agent ? -1 : peer.id.index,
                   .host = peer.who.host,
                   .message = fmt::format("{} ended without a word (killed?){}{}",
                                          describe_member(peer.id, peer.who.host),
                                          ending.reason.empty() ? "" : ": ", ending.reason),
                   .is_disruption = peer.id.is_agent});
  }
  vacate(number, peer);
  values_.cancel_all_of(number);
  peers_.erase(found);
}

bool StoreServer::Impl::is_seated(uint64_t number, const Peer& peer) const {
  const auto seat = seats_.find(peer.id);
  return seat != seats_.end() && seat->second == number;
}

void StoreServer::Impl::vacate(uint64_t number, const Peer& peer) {
  if (is_seated(number, peer)) seats_.erase(peer.id);
  update_over();
}

void StoreServer::Impl::send_value(const StoreValues::Waiter& waiter, const std::string& value) {
  const auto peer = peers_.find(waiter.member);
  if (peer != peers_.end()) peer->second.channel->send(Type::kValue, waiter.request, value);
}

void StoreServer::Impl::serve(uint64_t number, Peer& peer, const wire::Header& header,
                              std::string_view body) {
  const auto answer = [&](const std::string& value) {
    peer.channel->send(Type::kValue, header.request, value);
  };
  try {
    switch (header.type) {
      case Type::kHeartbeat:
        return;
      case Type::kSet: {
        auto [key, value] = wire::decode<wire::KeyValue>(body);
        values_.set(key, std::move(value));
        return answer({});
      }
      case Type::kGet:
        return values_.get(wire::decode<wire::Key>(body).key, {.member = number, .request = header.request});
      case Type::kAdd: {
        const auto [key, amount] = wire::decode<wire::KeyAmount>(body);
        return answer(std::to_string(values_.add(key, amount)));
      }
      case Type::kCancel:
        return values_.cancel({.member = number, .request = wire::decode<wire::Cancellation>(body).request});
      case Type::kSuspect: {
        Failure suspicion = wire::decode<Failure>(body);
        if (suspicion.rank >= 0 && static_cast<size_t>(suspicion.rank) < ranks_.size()) {
          suspicion.host = ranks_[static_cast<size_t>(suspicion.rank)].host;
          if (left_.contains({.index = suspicion.rank})) {
            suspicion.message +=
                fmt::format(" ({} has left the job)", describe_rank(suspicion.rank, suspicion.host));
          }
        }
        // A mismatch between ranks would happen again.
        suspicion.is_disruption = suspicion.code == ExitCode::kTryAgain;
        return verdict_.suspect(peer.id.index, suspicion);
      }
      case Type::kOwnFailure: {
        Failure failure = wire::decode<Failure>(body);
        failure.rank = peer.id.is_agent ? -1 : peer.id.index;
        failure.host = peer.who.host;
        if (!is_users_mistake(failure.code)) {
          failure.message = fmt::format("{}: {}", describe_member(peer.id, peer.who.host), failure.message);
        } else if (peer.who.local_world_size < options_.world_size) {
          // A missing file is not the fault of a rank, but may exist on other nodes.
          failure.message = fmt::format("host {}: {}", peer.who.host, failure.message);
        }
        verdict_.report(peer.id, -1, failure);
        announce_verdict();
        return answer({});
      }
      case Type::kReport:
        if (!peer.id.is_agent) fail(ExitCode::kBadData, "a report from a rank");
        report_now(wire::decode<Failure>(body), peer.id.index);
        return answer({});
      case Type::kNodeReport:
        if (!peer.id.is_agent) fail(ExitCode::kBadData, "a node's report from a rank");
        return reports_.take(peer.id.index, std::string(body), {.member = number, .request = header.request});
      case Type::kLeave:
        answer({});
        if (formed_) left_.insert(peer.id);
        return vacate(number, peer);
      case Type::kMissing:
        return answer(describe_missing());
      default:
        fail(ExitCode::kBadData, "unknown request {}", static_cast<int>(header.type));
    }
  } catch (const Error& error) {
    if (header.request == 0) throw;
    const wire::Refusal denial{.code = error.code(), .message = error.what()};
    peer.channel->send(Type::kDenied, header.request, wire::encode(denial));
  }
}

void StoreServer::Impl::report(const Failure& failure) {
  // The store is served by the agent of node 0.
  asio::post(io_, [this, failure] { report_now(failure, 0); });
}

void StoreServer::Impl::report_now(const Failure& failure, int reporting_node) {
  verdict_.report({.is_agent = failure.rank < 0, .index = failure.rank < 0 ? reporting_node : failure.rank},
                  reporting_node, failure);
  announce_verdict();
}

void StoreServer::Impl::announce_verdict() {
  if (announced_ || !verdict_.decided()) return;
  announced_ = true;
  {
    // Recorded before the members are told, so that anyone who hears of it from a member finds it here.
    const std::lock_guard lock(mutex_);
    failure_ = verdict_.decided();
  }
  changed_.notify_all();
  const std::string body = wire::encode(*verdict_.decided());
  for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kVerdict, 0, body);
}

void StoreServer::Impl::update_over() {
  // A lost rank has not left: there will be a verdict.
  const auto ranks_left = std::count_if(left_.begin(), left_.end(), [](MemberId id) { return !id.is_agent; });
  if (!seats_.empty() || ranks_left < options_.world_size) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

bool StoreServer::Impl::wait_until_over(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return over_ || failure_.has_value(); });
}

// Agents that have fallen silent will not report.
bool StoreServer::Impl::awaits_node_report() const {
  return std::any_of(seats_.begin(), seats_.end(), [this](const auto& seat) {
    return seat.first.is_agent && !reports_.has(seat.first.index) && !may_be_gone(peers_.at(seat.second));
  });
}

std::map<int, std::string> StoreServer::Impl::node_reports(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (on_thread([this] { return awaits_node_report(); }) && Clock::now() < deadline) {
    std::this_thread::sleep_for(kScanInterval);
  }
  return on_thread([this] { return reports_.all(); });
}

int StoreServer::Impl::count_waiting_nodes() const {
  return static_cast<int>(std::count_if(waiting_.begin(), waiting_.end(), [](const auto& node) {
    return Clock::now() - node.second < kStillWaiting;
  }));
}

std::string StoreServer::Impl::describe_present() const {
  std::string text;
  for (const auto& [id, number] : seats_) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", describe_member(id, peers_.at(number).who.host));
  }
  return text;
}

std::unique_ptr<StoreServer> StoreServer::start(const StoreServerOptions& options) {
  return std::make_unique<Impl>(options);
}

}  // namespace tessera
