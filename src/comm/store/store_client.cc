#include "comm/store/store_client.h"

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "base/text.h"
#include "comm/store/store_client_impl.h"
#include "comm/store/store_settings.h"

namespace tessera {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;
using Duration = std::chrono::duration<double>;
using std::chrono::milliseconds;

constexpr Duration kStandstill{2};  // a standstill this long is logged

}  // namespace

StoreClient::Impl::~Impl() {
  bool inside;
  {
    const std::lock_guard lock(mutex_);
    inside = state_ == State::kFormed || (is_agent_ && state_ == State::kAccepted);
  }
  if (inside) {
    try {
      if (std::uncaught_exceptions() > exceptions_at_join_) {
        report_own_failure(ExitCode::kTryAgain, "ended by an error");
      } else {
        leave();
      }
    } catch (const std::exception& error) {
      log_warning("store: {}", error.what());
    }
  }
  disconnect();
}

std::string StoreClient::Impl::describe_me() const {
  return is_agent_ ? fmt::format("the agent of node {} on host {}", world_.node_rank, world_.host)
                   : describe_rank(world_.rank, world_.host);
}

bool StoreClient::Impl::has_lost_store() const {
  const std::lock_guard lock(mutex_);
  return store_gone_ && !verdict_;
}

std::string StoreClient::Impl::describe_store() const {
  return fmt::format("the store at {} ({})", endpoint(),
                     world_.agent_has_store ? "agent of node 0" : "rank 0");
}

void StoreClient::Impl::on_message(const wire::Header& header, std::string_view body) {
  quiet_ = Duration(0);
  const std::lock_guard lock(mutex_);
  if (handshake_->take(*channel_, header, body)) return;
  switch (header.type) {
    case Type::kHeartbeat:
      return;
    case Type::kAccepted:
      channel_->set_max_body_bytes(wire::kMaxBodyBytes);
      state_ = State::kAccepted;
      break;
    case Type::kFormed:
      // Agents receive this message too, but do not need it.
      if (is_agent_) return;
      seats_ = wire::decode<wire::Seats>(body);
      if (std::ssize(seats_) != world_.world_size)
        fail(ExitCode::kBadData, "a table of {}", count_of(std::ssize(seats_), "rank"));
      state_ = State::kFormed;
      break;
    case Type::kVerdict:
      verdict_ = wire::decode<Failure>(body);
      failures_.set(*verdict_);
      break;
    case Type::kValue:
    case Type::kDenied:
      if (const auto waiting = replies_.find(header.request); waiting != replies_.end()) {
        waiting->second = Reply{.type = header.type, .body = std::string(body)};
      }
      break;
    default:
      fail(ExitCode::kBadData, "unknown message {}", static_cast<int>(header.type));
  }
  changed_.notify_all();
}

void StoreClient::Impl::on_closed(const wire::Ending& ending) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kAsked && ending.bad_message) return handshake_->take_ending(ending);
  }
  lose_store(
      fmt::format("ended without a word (killed?){}{}", ending.reason.empty() ? "" : ": ", ending.reason));
}

void StoreClient::Impl::start_ticking() {
  running_time_ = RunningTime(Duration(options_.heartbeat) / 4);
  quiet_ = since_heartbeat_ = Duration(0);
  tick();
}

void StoreClient::Impl::tick() {
  timer_.expires_after(std::chrono::nanoseconds(options_.heartbeat) / 4);
  timer_.async_wait([this](asio::error_code error) {
    if (error || !channel_->is_open()) return;
    const Duration elapsed = running_time_.advance();
    if (running_time_.last_gap() > kStandstill) {
      log_warning("{} stood still for {:.1f} s (stopped, or its machine overloaded)", describe_me(),
                  running_time_.last_gap().count());
    }
    quiet_ += elapsed;
    since_heartbeat_ += elapsed;
    if (since_heartbeat_ >= options_.heartbeat) {
      since_heartbeat_ = Duration(0);
      channel_->send(Type::kHeartbeat, 0, {});
    }
    if (quiet_ < options_.silence) return tick();
    channel_->close();
    lose_store(fmt::format("has been silent for {:.1f} s", Duration(options_.silence).count()));
  });
}

void StoreClient::Impl::lose_store(const std::string& how) {
  const std::lock_guard lock(mutex_);
  store_gone_ = true;
  if (state_ == State::kFormed || (is_agent_ && state_ == State::kAccepted)) {
    const bool by_rank = !world_.agent_has_store;
    if (!verdict_) {
      failures_.set({.rank = by_rank ? 0 : -1,
                     .host = by_rank && !seats_.empty() ? seats_.front().host : world_.master_addr,
                     .message = fmt::format("{} {}", describe_store(), how)});
    }
  } else {
    problem_ = fmt::format("{} {}", describe_store(), how);
  }
  changed_.notify_all();
}

void StoreClient::Impl::send(Type type, uint32_t request, std::string body) {
  asio::post(io_, [this, type, request, body = std::move(body)] { channel_->send(type, request, body); });
}

std::optional<StoreClient::Impl::Reply> StoreClient::Impl::ask(Type type, const std::string& body,
                                                               milliseconds timeout, bool after_verdict) {
  std::unique_lock lock(mutex_);
  TESSERA_CHECK(state_ == State::kAccepted || state_ == State::kFormed, "a request to a store that was left");
  const uint32_t number = next_request_++;
  const auto slot = replies_.emplace(number, std::nullopt).first;
  send(type, number, body);
  const auto over = [&] { return slot->second || store_gone_ || (verdict_ && !after_verdict); };
  // A process that was stopped past its deadline still has to read the messages of that time.
  if (!changed_.wait_for(lock, timeout, over)) changed_.wait_for(lock, options_.heartbeat, over);
  std::optional<Reply> reply = std::move(slot->second);
  replies_.erase(slot);
  if (!reply && type == Type::kGet) send(Type::kCancel, 0, wire::encode(wire::Cancellation{number}));
  return reply;
}

std::string StoreClient::Impl::request(Type type, const std::string& body, milliseconds timeout,
                                       const std::string& what) {
  failures_.check();
  const std::optional<Reply> reply = ask(type, body, timeout);
  if (!reply) {
    failures_.check();
    fail(ExitCode::kTryAgain, "{}: {} within {:.1f} s", describe_me(), what, Duration(timeout).count());
  }
  if (reply->type == Type::kDenied) {
    const wire::Refusal denial = wire::decode<wire::Refusal>(reply->body);
    throw Error(denial.code, denial.message);
  }
  return reply->body;
}

void StoreClient::Impl::set(const std::string& key, const std::string& value) {
  request(Type::kSet, wire::encode(wire::KeyValue{key, value}), options_.rendezvous_timeout,
          fmt::format("the store did not take '{}'", printable(key)));
}

std::string StoreClient::Impl::get(const std::string& key, milliseconds timeout) {
  return request(Type::kGet, wire::encode(wire::Key{key}), timeout,
                 fmt::format("nobody set '{}' in the store", printable(key)));
}

int64_t StoreClient::Impl::add(const std::string& key, int64_t amount) {
  return std::stoll(request(Type::kAdd, wire::encode(wire::KeyAmount{key, amount}),
                            options_.rendezvous_timeout,
                            fmt::format("the store did not add to '{}'", printable(key))));
}

void StoreClient::Impl::watch(const std::string& key) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(state_ == State::kFormed, "a request to a store that was left");
  replies_.erase(watch_request_);
  watch_request_ = next_request_++;
  replies_.emplace(watch_request_, std::nullopt);
  send(Type::kGet, watch_request_, wire::encode(wire::Key{key}));
}

std::optional<std::string> StoreClient::Impl::watched() const {
  const std::lock_guard lock(mutex_);
  const auto waiting = replies_.find(watch_request_);
  if (waiting == replies_.end() || !waiting->second || waiting->second->type != Type::kValue)
    return std::nullopt;
  return waiting->second->body;
}

Failure StoreClient::Impl::settle(Failure suspicion) {
  if (suspicion.rank >= 0 && static_cast<size_t>(suspicion.rank) < hosts_.size()) {
    suspicion.host = hosts_[static_cast<size_t>(suspicion.rank)];
  }
  const auto limit = options_.suspicion_grace + options_.lost_grace + kPartingTime;
  std::unique_lock lock(mutex_);
  if (state_ != State::kFormed || store_gone_) return suspicion;
  send(Type::kSuspect, 0, wire::encode(suspicion));
  changed_.wait_for(lock, limit, [&] { return store_gone_ || verdict_; });
  if (verdict_) return *verdict_;
  // Set if the store was lost, which may be the cause of all this.
  return failures_.failure().value_or(suspicion);
}

void StoreClient::Impl::report_own_failure(ExitCode code, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || store_gone_) return;
    // The others already know.
    if (verdict_) {
      state_ = State::kEnded;
      return;
    }
  }
  ask(Type::kOwnFailure,
      wire::encode(Failure{.rank = world_.rank, .host = world_.host, .message = message, .code = code}),
      kPartingTime);
  const std::lock_guard lock(mutex_);
  state_ = State::kEnded;
}

void StoreClient::Impl::report(const Failure& failure) {
  TESSERA_CHECK(is_agent_, "rank {} reports for another", world_.rank);
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded || store_gone_ || verdict_) return;
  }
  ask(Type::kReport, wire::encode(failure), kPartingTime);
}

std::optional<std::string> StoreClient::Impl::hand_in(const std::string& node_report, milliseconds timeout) {
  TESSERA_CHECK(is_agent_, "rank {} speaks for a node", world_.rank);
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kAccepted || store_gone_) return std::nullopt;
  }
  const std::optional<Reply> reply = ask(Type::kNodeReport, node_report, timeout, /*after_verdict=*/true);
  if (!reply || reply->type != Type::kValue) return std::nullopt;
  return reply->body;
}

void StoreClient::Impl::leave() {
  bool last_word = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return;
    last_word = store_gone_ || verdict_;
  }
  if (!last_word) ask(Type::kLeave, {}, kPartingTime);
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kEnded;
  }
  if (!server_ || last_word) return;
  // Members that hang or are stopped are detected by their silence; working ones may take their time.
  while (!server_->wait_until_over(std::chrono::minutes(1))) {
    log_info("rank 0 has finished and keeps serving the store until all others have: {}", server_->present());
  }
  if (const auto failure = server_->failure()) log_warning("after rank 0 had finished: {}", failure->message);
}

void set_heartbeat_timeout(StoreOptions* options, milliseconds timeout) {
  options->silence = timeout;
  options->heartbeat = std::clamp(timeout / 10, milliseconds(20), StoreOptions{}.heartbeat);
}

void StoreClient::Impl::check_same_settings(const std::map<std::string, std::string>& settings) {
  const std::string prefix = fmt::format("tessera/settings/{}/", num_settings_checks_++);
  const std::string difference = find_difference(*this, world_, prefix, settings);
  if (!difference.empty()) failures_.fail_because(-1, difference, ExitCode::kBadConfig);
}

std::unique_ptr<StoreClient> StoreClient::join(const World& world, const StoreOptions& options) {
  auto client = std::make_unique<Impl>(world, options, /*is_agent=*/false);
  client->join();
  return client;
}

std::unique_ptr<StoreClient> StoreClient::join_as_agent(const World& world, const StoreOptions& options) {
  auto client = std::make_unique<Impl>(world, options, /*is_agent=*/true);
  client->join();
  return client;
}

}  // namespace tessera
