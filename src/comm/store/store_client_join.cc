// Joining and leaving the store, on a member's side.

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "comm/store/store_client_impl.h"

namespace tessera {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{3'000};  // retry if the store accepts no connection by then
constexpr milliseconds kAnswerTime{5'000};   // or does not answer by then
// Doubles after every attempt: at first the store is probably about to listen.
constexpr milliseconds kFirstPause{10}, kRetryPause{200};
// For one lookup of the store's name: three unresponsive name servers at 5 s each, asked twice, as is usual.
constexpr milliseconds kResolveTime{30'000};

}  // namespace

void StoreClient::Impl::join() {
  const auto deadline = Clock::now() + options_.rendezvous_timeout;
  exceptions_at_join_ = std::uncaught_exceptions();
  next_notice_ = Clock::now() + wire::kFirstNotice;
  if (!is_agent_ && !world_.agent_has_store && world_.rank == 0) {
    server_ =
        StoreServer::start({.bind_addresses = listen_addresses(
                                world_.master_addr, std::min(options_.rendezvous_timeout, kOwnNameTime)),
                            .port = world_.master_port,
                            .secret = world_.secret,
                            .run_id = world_.run_id,
                            .world_size = world_.world_size,
                            .restart_count = world_.restart_count,
                            .timing = options_});
  }
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kRetryPause)) {
    const std::string problem = try_join(deadline);
    if (problem.empty()) break;
    disconnect();
    if (is_notice_due()) log_warning("{} is waiting for the job to start: {}", describe_me(), problem);
    // Do not start an attempt that the deadline would cut short: its error would say nothing.
    if (deadline - Clock::now() <= kRetryPause) {
      fail(ExitCode::kTryAgain, "{}: the job was not complete after {:.3g} s: {}", describe_me(),
           Duration(options_.rendezvous_timeout).count(), problem);
    }
    std::this_thread::sleep_for(pause);
  }
  if (!is_agent_) learn_seats();
}

std::string StoreClient::Impl::try_join(Clock::time_point deadline) {
  try {
    tcp::socket socket = wire::connect(io_, world_.master_addr, world_.master_port,
                                       std::min(deadline, Clock::now() + kResolveTime), kConnectTime);
    channel_ = std::make_shared<wire::Channel>(std::move(socket), wire::kMaxJoinBytes);
  } catch (const Error& error) {
    return error.what();
  }
  if (const std::string problem = ask_to_join(deadline); !problem.empty()) return problem;
  start_ticking();
  thread_ = wire::run_in_thread(io_);
  return is_agent_ ? std::string() : wait_until_formed(deadline);
}

std::string StoreClient::Impl::ask_to_join(Clock::time_point deadline) {
  local_ = choose_local_address(world_, wire::address_text(channel_->local_endpoint().address()),
                                options_.interface);
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kAsked;
    handshake_.emplace(endpoint(), wire::proof_key(world_.secret, world_.run_id), Type::kJoin,
                       wire::encode(join_request()));
    store_gone_ = false;
    problem_.clear();
  }
  channel_->start(
      {.message = [this](const wire::Header& header, std::string_view body) { on_message(header, body); },
       .closed = [this](const wire::Ending& ending) { on_closed(ending); }});
  const auto limit = std::min(deadline, Clock::now() + kAnswerTime);
  const auto pending = [&] {
    const std::lock_guard lock(mutex_);
    return state_ == State::kAsked && !handshake_->refusal() && !store_gone_;
  };
  io_.restart();
  while (pending() && io_.run_one_until(limit) > 0) {
  }
  const std::lock_guard lock(mutex_);
  if (const auto& refusal = handshake_->refusal()) {
    if (unproved_.is_final(*handshake_)) throw RefusedError(refusal->code, refusal->message);
    return refusal->message;
  }
  unproved_.reset();
  if (store_gone_) return problem_;
  if (state_ == State::kAsked) return fmt::format("no answer from {}", endpoint());
  return {};
}

std::string StoreClient::Impl::wait_until_formed(Clock::time_point deadline) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, std::min(deadline, next_notice_),
                          [&] { return state_ == State::kFormed || verdict_ || store_gone_; });
      if (state_ == State::kFormed) return {};
      if (verdict_) throw PeerError(verdict_->code, verdict_->message);
      if (store_gone_) return problem_;
    }
    const bool is_over = Clock::now() >= deadline;
    if (!is_over && !is_notice_due()) continue;
    const auto missing = ask(Type::kMissing, {}, kPartingTime);
    if (missing && missing->body.empty()) continue;  // complete by now
    if (is_over) return missing ? missing->body : fmt::format("{} no longer answers", describe_store());
    // One rank speaks for all that have joined.
    if (world_.rank == 0 && missing) {
      log_warning("waiting for the job to start: {}", missing->body);
    }
  }
}

// Whether it is time to log who is being waited for.
bool StoreClient::Impl::is_notice_due() {
  if (Clock::now() < next_notice_) return false;
  next_notice_ = Clock::now() + wire::kNextNotice;
  return true;
}

void StoreClient::Impl::disconnect() {
  if (thread_.joinable()) {
    asio::post(io_, [this] {
      timer_.cancel();
      channel_->close();
      io_.stop();
    });
    thread_.join();
  } else if (channel_) {
    channel_->close();
  }
  // Handlers in flight refer to this channel and must not run with the next one, or with none.
  do {
    io_.restart();
  } while (io_.poll() > 0);
  channel_.reset();
  const std::lock_guard lock(mutex_);
  state_ = State::kOut;
}

wire::JoinRequest StoreClient::Impl::join_request() const {
  return {.restart_count = world_.restart_count,
          .world_size = world_.world_size,
          .local_world_size = world_.local_world_size,
          .is_agent = is_agent_,
          .rank = is_agent_ ? -1 : world_.rank,
          .node_rank = world_.node_rank,
          .host = world_.host,
          .address = local_.address,
          .address_is_guess = local_.is_guess,
          .pid = getpid()};
}

void StoreClient::Impl::learn_seats() {
  {
    const std::lock_guard lock(mutex_);
    for (const wire::Seat& seat : seats_) {
      hosts_.push_back(seat.host);
      addresses_.push_back(seat.address);
    }
  }
  local_.address = addresses_.at(static_cast<size_t>(world_.rank));
  if (world_.rank == 0 && world_.num_nodes > 1) log_nodes(world_, hosts_, addresses_);
}

}  // namespace tessera
