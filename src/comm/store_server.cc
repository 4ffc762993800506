#include "comm/store_server.h"

#include <asio.hpp>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "comm/node_reports.h"
#include "comm/store_door.h"
#include "comm/store_values.h"
#include "comm/verdict.h"

namespace tessera {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;
using Duration = Verdict::Duration;

// How often it is looked whether the nodes have reported.
constexpr std::chrono::milliseconds kLook{5};
// A node that waits asks every 0.2 s, behind a connection that may take its time.
constexpr std::chrono::milliseconds kStillWaiting{2'000};

std::string describe_member(MemberId id, const std::string& host) {
  return id.is_agent ? fmt::format("the agent of node {} on host {}", id.index, host)
                     : describe_rank(id.index, host);
}

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreServerOptions& options);
  ~Impl();

  int port() const { return door_.port(); }
  std::optional<Failure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void report(const Failure& failure);
  bool wait_until_over(std::chrono::milliseconds timeout);
  std::map<int, std::string> node_reports(std::chrono::milliseconds timeout);
  void answer_node_reports(const std::string& place) {
    on_thread([&] { return reports_.set_place(place), true; });
  }
  std::optional<double> silence_of_agent(int node) {
    return on_thread([&] { return reports_.silence_s(node); });
  }
  std::string missing() {
    return on_thread([this] { return describe_missing(); });
  }
  std::string present() {
    return on_thread([this] { return describe_present(); });
  }
  int num_waiting_nodes() {
    return on_thread([this] { return count_waiting_nodes(); });
  }

 private:
  // A member and its connection.
  struct Peer {
    std::shared_ptr<wire::Channel> channel;
    MemberId id;
    wire::JoinRequest who;
    Duration quiet{0};  // since it was last heard
  };

  std::optional<wire::Refusal> admit(const wire::Door::Entrant& entrant);
  void tick();
  void on_message(uint64_t number, const wire::Header& header, std::string_view body);
  void on_closed(uint64_t number, const wire::Ending& ending);

  std::optional<wire::Refusal> objection(const wire::JoinRequest& request, MemberId id);
  void form_when_complete();
  void form();
  bool may_be_gone(const Peer& peer) const;
  void send_value(const StoreValues::Waiter& waiter, const std::string& value);
  void serve(uint64_t number, Peer& peer, const wire::Header& header, std::string_view body);
  void vacate(uint64_t number, const Peer& peer);

  void find_silent(Duration elapsed);
  void find_missing_agents(Duration elapsed);
  bool is_relied_on(MemberId id) const;
  Failure describe_silence(const Peer& peer) const;
  void report_now(const Failure& failure, int watched_node);
  bool is_seated(uint64_t number, const Peer& peer) const;
  void announce_verdict();
  bool awaits_node_report() const;
  // What body() gives on the thread.
  template <typename Body>
  auto on_thread(const Body& body) -> decltype(body());
  std::string describe_missing() const;
  std::string describe_present() const;
  int count_waiting_nodes() const;
  void update_over();

  const StoreServerOptions options_;
  asio::io_context io_;
  wire::Door door_;
  asio::steady_timer timer_;
  std::chrono::nanoseconds tick_;
  Clock::time_point last_tick_ = Clock::now();
  Duration since_heartbeat_{0};

  std::map<uint64_t, Peer> peers_;
  uint64_t next_number_ = 1;
  std::map<MemberId, uint64_t> seats_;  // members there now
  // Nodes that would take part in the next start, by host and process: when they asked last.
  std::map<std::pair<std::string, int64_t>, Clock::time_point> waiting_;
  std::set<MemberId> left_;        // in order, after the job was complete
  std::vector<wire::Seat> ranks_;  // when the job was complete
  bool formed_ = false;
  std::set<int> agents_seen_;
  bool agents_are_there_ = false;
  Duration waited_for_agents_{0};
  std::string reached_at_;  // an address of this machine by which a member came that is not loopback
  StoreValues values_;
  NodeReports reports_;
  Verdict verdict_;
  bool announced_ = false;
  bool closing_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;  // mutex_
  bool over_ = false;               // mutex_

  std::thread thread_;
};

StoreServer::Impl::Impl(const StoreServerOptions& options)
    : options_(options),
      door_(io_, {.addresses = options.bind_addresses, .port = options.port, .secret = options.secret},
            [this](const wire::Door::Entrant& entrant) { return admit(entrant); }),
      timer_(io_),
      // Fine enough to tell 5.0 s from 5.1 s, coarse enough to cost nothing.
      tick_(std::min<std::chrono::nanoseconds>(options.timing.heartbeat / 5, std::chrono::milliseconds(50))),
      values_([this](const auto& waiter, const std::string& value) { send_value(waiter, value); }),
      reports_([this](const auto& waiter, const std::string& value) { send_value(waiter, value); }),
      verdict_(options.timing.lost_grace, options.timing.suspicion_grace) {
  tick();
  thread_ = wire::run_in_thread(io_);
}

StoreServer::Impl::~Impl() {
  asio::post(io_, [this] {
    closing_ = true;
    door_.close();
    for (auto& [number, peer] : peers_) peer.channel->close_after_sending();
    wire::end_when(io_, timer_, [this] { return peers_.empty() && door_.is_empty(); });
  });
  thread_.join();
}

void StoreServer::Impl::tick() {
  timer_.expires_after(tick_);
  timer_.async_wait([this](asio::error_code error) {
    if (error || closing_) return;
    const auto now = Clock::now();
    // Time in which this process did not run says nothing about others: what they sent is yet to be read.
    const Duration elapsed = std::min<Duration>(now - last_tick_, 2 * tick_);
    last_tick_ = now;
    since_heartbeat_ += elapsed;
    if (since_heartbeat_ >= options_.timing.heartbeat) {
      since_heartbeat_ = Duration(0);
      for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kHeartbeat, 0, {});
    }
    door_.advance(elapsed);
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

void StoreServer::Impl::find_missing_agents(Duration elapsed) {
  if (agents_are_there_) return;
  waited_for_agents_ += elapsed;
  int missing = 0;
  for (int node = options_.num_agents; node > 0; --node) {
    if (!agents_seen_.contains(node)) missing = node;
  }
  agents_are_there_ = missing == 0;
  if (agents_are_there_ || waited_for_agents_ < Duration(options_.time_for_agents)) return;
  verdict_.silent(
      {.is_agent = true, .index = missing},
      {.message = fmt::format("the agent of node {} has not come within {:.1f} s after the nodes met",
                              missing, Duration(options_.time_for_agents).count()),
       .is_disruption = true});
}

// Whether its end is the job's: of a member of a complete job, or of an agent that was counted upon.
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

// Why the member cannot join, if so.
std::optional<wire::Refusal> StoreServer::Impl::objection(const wire::JoinRequest& request, MemberId id) {
  const auto refusal = [](ExitCode code, const std::string& message, bool try_again = false) {
    return wire::Refusal{.try_again = try_again, .code = code, .message = message};
  };
  const std::string who = describe_member(id, request.host);
  if (request.run_id != options_.run_id) {
    return refusal(ExitCode::kBadConfig,
                   fmt::format("{} belongs to job '{}', but the store on this port to job '{}': the same "
                               "--rdzv_id on all nodes, another port for each job",
                               who, printable(request.run_id), printable(options_.run_id)));
  }
  if (request.restart_count != options_.restart_count) {
    // An older store is about to be replaced; an older member has missed its end.
    return refusal(ExitCode::kTryAgain,
                   fmt::format("{} is of start {} of the job, the store of start {}", who,
                               request.restart_count, options_.restart_count),
                   request.restart_count > options_.restart_count);
  }
  if (verdict_.decided()) {
    return refusal(verdict_.decided()->code,
                   fmt::format("the job has failed: {}", verdict_.decided()->message));
  }
  if (request.world_size != options_.world_size) {
    return refusal(ExitCode::kBadConfig,
                   fmt::format("{} was started for {} ranks, the store for {}: the same --nnodes and "
                               "--nproc_per_node on all nodes",
                               who, request.world_size, options_.world_size));
  }
  for (const auto& [other_id, other_number] : seats_) {
    const wire::JoinRequest& other = peers_.at(other_number).who;
    if (other.local_world_size != request.local_world_size) {
      return refusal(
          ExitCode::kBadConfig,
          fmt::format("{} is of a node with {} ranks, {} of one with {}: every node must have as many", who,
                      request.local_world_size, describe_member(other_id, other.host),
                      other.local_world_size));
    }
    if (other.node_rank == request.node_rank && other.host != request.host) {
      return refusal(
          ExitCode::kBadConfig,
          fmt::format("{} and {} both say that they are of node {}: another --node_rank on each node", who,
                      describe_member(other_id, other.host), request.node_rank));
    }
  }
  if (!id.is_agent && (id.index < 0 || id.index >= options_.world_size)) {
    return refusal(ExitCode::kBadConfig, fmt::format("{} of a job of {} ranks", who, options_.world_size));
  }
  if (const auto seat = seats_.find(id); seat != seats_.end()) {
    const Peer& holder = peers_.at(seat->second);
    // One that may be gone is given the time to show it.
    return refusal(ExitCode::kBadConfig,
                   fmt::format("{} (process {}) cannot join: {} (process {}) has this place already; is "
                               "--node_rank the same on two nodes, or an earlier start still running?",
                               who, request.pid, describe_member(id, holder.who.host), holder.who.pid),
                   may_be_gone(holder));
  }
  if (formed_ && !id.is_agent) {
    return refusal(ExitCode::kTryAgain,
                   fmt::format("{} comes too late: the job runs, and this rank was in it "
                               "and has left",
                               who));
  }
  return std::nullopt;
}

std::optional<wire::Refusal> StoreServer::Impl::admit(const wire::Door::Entrant& entrant) {
  if (entrant.type == Type::kMeet) {
    const wire::MeetRequest request = wire::MeetRequest::decode(entrant.request);
    if (request.run_id == options_.run_id) waiting_[{request.host, request.pid}] = Clock::now();
    const int nodes = options_.num_agents + 1;
    return wire::Refusal{
        .try_again = true,
        .code = ExitCode::kTryAgain,
        .message = fmt::format("the job runs on {} {} (start {}); this node joins when it starts "
                               "again",
                               nodes, nodes == 1 ? "node" : "nodes", options_.restart_count)};
  }
  const wire::JoinRequest request = wire::JoinRequest::decode(entrant.request);
  const MemberId id{.is_agent = request.is_agent,
                    .index = request.is_agent ? request.node_rank : request.rank};
  if (const auto refusal = objection(request, id)) return refusal;
  const uint64_t number = next_number_++;
  Peer& peer = peers_[number];
  peer.channel = entrant.channel;
  peer.id = id;
  peer.who = request;
  peer.channel->set_max_body_bytes(wire::kMaxBodyBytes);
  peer.channel->set_handlers(
      {.message = [this, number](const wire::Header& header,
                                 std::string_view body) { on_message(number, header, body); },
       .closed = [this, number](const wire::Ending& ending) { on_closed(number, ending); }});
  if (const auto local = peer.channel->local_endpoint().address(); !wire::is_loopback(local)) {
    reached_at_ = wire::address_text(local);
  }
  seats_[id] = number;
  if (id.is_agent) {
    agents_seen_.insert(id.index);
    reports_.heard(id.index);
  }
  peer.channel->send(Type::kAccepted, 0, {});
  form_when_complete();
  return std::nullopt;
}

bool StoreServer::Impl::may_be_gone(const Peer& peer) const {
  return peer.quiet > 3 * Duration(options_.timing.heartbeat);
}

void StoreServer::Impl::form_when_complete() {
  if (formed_ || verdict_.decided()) return;
  int joined = 0;
  for (const auto& [id, number] : seats_) {
    // One that will not be heard again would end the job that it completed.
    if (!id.is_agent && !may_be_gone(peers_.at(number))) ++joined;
  }
  if (joined == options_.world_size) form();
}

void StoreServer::Impl::form() {
  formed_ = true;
  for (const auto& [id, number] : seats_) {
    if (id.is_agent) continue;
    const wire::JoinRequest& who = peers_.at(number).who;
    // Where the others reached the store, they reach the ranks beside it.
    const bool correct = who.address_is_guess && !reached_at_.empty();
    ranks_.push_back(
        {.node_rank = who.node_rank, .host = who.host, .address = correct ? reached_at_ : who.address});
  }
  const std::string body = wire::encode_seats(ranks_);
  for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kFormed, 0, body);
}

void StoreServer::Impl::send_value(const StoreValues::Waiter& waiter, const std::string& value) {
  const auto peer = peers_.find(waiter.member);
  if (peer != peers_.end()) peer->second.channel->send(Type::kValue, waiter.request, value);
}

void StoreServer::Impl::serve(uint64_t number, Peer& peer, const wire::Header& header,
                              std::string_view body) {
  wire::Reader in(body);
  const auto answer = [&](const std::string& value) {
    peer.channel->send(Type::kValue, header.request, value);
  };
  try {
    switch (header.type) {
      case Type::kHeartbeat:
        return;
      case Type::kSet: {
        const std::string key = in.text(wire::kMaxKeyBytes);
        values_.set(key, in.text());
        return answer({});
      }
      case Type::kGet:
        return values_.get(in.text(wire::kMaxKeyBytes), {.member = number, .request = header.request});
      case Type::kAdd: {
        const std::string key = in.text(wire::kMaxKeyBytes);
        return answer(std::to_string(values_.add(key, in.i64())));
      }
      case Type::kCancel:
        return values_.cancel({.member = number, .request = in.u32()});
      case Type::kSuspect: {
        Failure suspicion = wire::decode_failure(body);
        if (suspicion.rank >= 0 && static_cast<size_t>(suspicion.rank) < ranks_.size()) {
          suspicion.host = ranks_[static_cast<size_t>(suspicion.rank)].host;
          if (left_.contains({.index = suspicion.rank})) {
            suspicion.message +=
                fmt::format(" ({} has left the job)", describe_rank(suspicion.rank, suspicion.host));
          }
        }
        // Ranks at odds with one another will be so again.
        suspicion.is_disruption = suspicion.code == ExitCode::kTryAgain;
        return verdict_.suspect(peer.id.index, suspicion);
      }
      case Type::kOwnFailure: {
        Failure failure = wire::decode_failure(body);
        failure.rank = peer.id.is_agent ? -1 : peer.id.index;
        failure.host = peer.who.host;
        failure.message = fmt::format("{}: {}", describe_member(peer.id, peer.who.host), failure.message);
        verdict_.report(peer.id, -1, failure);
        announce_verdict();
        return answer({});
      }
      case Type::kReport:
        if (!peer.id.is_agent) fail(ExitCode::kBadData, "a report from a rank");
        report_now(wire::decode_failure(body), peer.id.index);
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
    peer.channel->send(Type::kDenied, header.request, denial.encode());
  }
}

void StoreServer::Impl::report(const Failure& failure) {
  // The agent that serves the store is that of node 0.
  asio::post(io_, [this, failure] { report_now(failure, 0); });
}

void StoreServer::Impl::report_now(const Failure& failure, int watched_node) {
  verdict_.report({.is_agent = failure.rank < 0, .index = failure.rank < 0 ? watched_node : failure.rank},
                  watched_node, failure);
  announce_verdict();
}

void StoreServer::Impl::announce_verdict() {
  if (announced_ || !verdict_.decided()) return;
  announced_ = true;
  {
    // Before the members know: whoever hears of it from one of them finds it here.
    const std::lock_guard lock(mutex_);
    failure_ = verdict_.decided();
  }
  changed_.notify_all();
  const std::string body = wire::encode_failure(*verdict_.decided());
  for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kVerdict, 0, body);
}

void StoreServer::Impl::update_over() {
  // A rank that was lost has not left: there will be a verdict.
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

template <typename Body>
auto StoreServer::Impl::on_thread(const Body& body) -> decltype(body()) {
  std::promise<decltype(body())> answer;
  asio::post(io_, [&] { answer.set_value(body()); });
  return answer.get_future().get();
}

// Those that cannot be heard will not report.
bool StoreServer::Impl::awaits_node_report() const {
  return std::any_of(seats_.begin(), seats_.end(), [this](const auto& seat) {
    return seat.first.is_agent && !reports_.has(seat.first.index) && !may_be_gone(peers_.at(seat.second));
  });
}

std::map<int, std::string> StoreServer::Impl::node_reports(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (on_thread([this] { return awaits_node_report(); }) && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLook);
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

// "3 of 8 ranks missing: 2-3, 6; joined: 0-1 (host a), 4-5, 7 (host b); refused: rank 2 on host c ..."
std::string StoreServer::Impl::describe_missing() const {
  std::vector<int> missing;
  std::map<std::string, std::vector<int>> joined;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const auto seat = seats_.find({.index = rank});
    if (seat == seats_.end()) {
      missing.push_back(rank);
    } else {
      joined[peers_.at(seat->second).who.host].push_back(rank);
    }
  }
  if (missing.empty() || formed_) return {};
  std::string text =
      fmt::format("{} of {} ranks missing: {}", missing.size(), options_.world_size, format_ranks(missing));
  if (!joined.empty()) text += "; joined:";
  std::string_view separator = " ";
  for (const auto& [host, ranks] : joined) {
    text += fmt::format("{}{} (host {})", separator, format_ranks(ranks), host);
    separator = ", ";
  }
  if (!door_.last_refusal().empty()) text += "; refused: " + door_.last_refusal();
  return text;
}

StoreServer::StoreServer(const StoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return impl_->port(); }
std::optional<Failure> StoreServer::failure() const { return impl_->failure(); }
std::map<int, std::string> StoreServer::node_reports(std::chrono::milliseconds timeout) {
  return impl_->node_reports(timeout);
}
void StoreServer::answer_node_reports(const std::string& place) { impl_->answer_node_reports(place); }
std::optional<double> StoreServer::silence_of_agent(int node) { return impl_->silence_of_agent(node); }
void StoreServer::report(const Failure& failure) { impl_->report(failure); }
bool StoreServer::wait_until_over(std::chrono::milliseconds timeout) {
  return impl_->wait_until_over(timeout);
}
std::string StoreServer::missing() const { return impl_->missing(); }
int StoreServer::num_waiting_nodes() { return impl_->num_waiting_nodes(); }
std::string StoreServer::present() const { return impl_->present(); }

}  // namespace tessera
