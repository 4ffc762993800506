#include "launch/meeting/meeting_client.h"

#include <asio.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "comm/store/running_time.h"
#include "comm/store/store_channel.h"
#include "comm/store/store_proof.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;
using Duration = std::chrono::duration<double>;
using std::chrono::milliseconds;

constexpr milliseconds kMeetingConnectTime{3'000};
// Two unresponsive name servers at the usual 5 s each.
constexpr milliseconds kMeetingResolveTime{10'000};
constexpr milliseconds kMeetingRetryPause{200};
// The interval at which the thread checks whether it should end.
constexpr milliseconds kMeetingLook{50};

}  // namespace

class MeetingClient::Impl {
 public:
  explicit Impl(const MeetingClientOptions& options)
      : options_(options),
        begin_(Clock::now()),
        last_answer_(begin_),
        unproved_(std::min(options.timing.silence, options.timing.rendezvous_timeout / 4)),
        thread_(start_background_thread([this] { run(); })) {}
  ~Impl() {
    ending_ = true;
    thread_.join();
  }

  std::optional<wire::Assignment> wait(milliseconds timeout);

 private:
  void run();
  // Runs one connection until it has a result or ends; returns the reason it failed. Error if retrying is
  // pointless.
  std::string attend();
  void on_message(wire::Channel& channel, const wire::Header& header, std::string_view body);
  [[noreturn]] void fail_without(const std::string& problem);
  std::string advice() const;
  std::string endpoint() const { return fmt::format("{}:{}", options_.address, options_.port); }

  const MeetingClientOptions options_;
  const Clock::time_point begin_;

  // Used on the thread.
  Clock::time_point last_answer_;  // authenticated, from node 0
  Duration quiet_{0};              // on this connection
  bool was_answered_ = false;
  std::optional<wire::Handshake> handshake_;
  std::optional<wire::Assignment> assigned_;
  std::string last_reason_;
  wire::UnprovedRefusals unproved_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<wire::Assignment> assignment_;  // mutex_
  std::optional<Error> error_;                  // mutex_
  std::atomic<bool> ending_ = false;
  std::thread thread_;  // declared last: it uses the other members
};

void MeetingClient::Impl::run() {
  std::optional<Error> error;
  auto next_notice = Clock::now() + wire::kFirstNotice;
  try {
    while (!ending_ && !assigned_) {
      const std::string problem = attend();
      if (assigned_ || ending_) break;
      if (Clock::now() >= next_notice) {
        next_notice = Clock::now() + wire::kNextNotice;
        log_warning("the agent of node 0 cannot be reached after {:.0f} s: {}{}",
                    Duration(Clock::now() - begin_).count(), problem, advice());
      }
      const bool knows_node0 = options_.has_met_before || was_answered_;
      const Duration limit = knows_node0 ? options_.timing.silence : options_.timing.rendezvous_timeout;
      if (Clock::now() - (knows_node0 ? last_answer_ : begin_) >= limit) fail_without(problem);
      for (milliseconds slept{0}; slept < kMeetingRetryPause && !ending_; slept += kMeetingLook) {
        std::this_thread::sleep_for(kMeetingLook);
      }
    }
  } catch (const Error& failure) {
    error = failure;
  } catch (const std::exception& failure) {
    error = Error(ExitCode::kIoError, fmt::format("while meeting the other nodes: {}", failure.what()));
  }
  {
    const std::lock_guard lock(mutex_);
    assignment_ = assigned_;
    error_ = error;
  }
  changed_.notify_all();
}

void MeetingClient::Impl::fail_without(const std::string& problem) {
  if (options_.has_met_before || was_answered_) {
    fail(ExitCode::kTryAgain,
         "the agent of node 0 at {}, where the nodes of the job meet, has not answered for {:.1f} s: {}",
         endpoint(), Duration(options_.timing.silence).count(), problem);
  }
  fail(ExitCode::kTryAgain,
       "the agent of node 0, where the nodes of the job meet, was not reached within {:.3g} s: {}{}",
       Duration(options_.timing.rendezvous_timeout).count(), problem, advice());
}

std::string MeetingClient::Impl::advice() const {
  return fmt::format(
      "; check that tessera launch --node_rank 0 is running on {} with the same --rdzv_endpoint, and that "
      "its port {} can be reached from here (name, firewall)",
      options_.address, options_.port);
}

std::string MeetingClient::Impl::attend() {
  asio::io_context io;
  std::shared_ptr<wire::Channel> channel;
  try {
    const auto limit =
        std::min(begin_ + options_.timing.rendezvous_timeout, Clock::now() + kMeetingResolveTime);
    channel = std::make_shared<wire::Channel>(
        wire::connect(io, options_.address, options_.port, std::max(limit, Clock::now() + kMeetingRetryPause),
                      kMeetingConnectTime),
        wire::kMaxJoinBytes);
  } catch (const Error& error) {
    return error.what();
  }
  handshake_.emplace(endpoint(), wire::proof_key(options_.secret, options_.run_id), Type::kMeet,
                     wire::encode(options_.request));
  bool has_ended = false;
  channel->start({.message = [&](const wire::Header& header,
                                 std::string_view body) { on_message(*channel, header, body); },
                  .closed =
                      [&](const wire::Ending& ending) {
                        if (ending.bad_message) handshake_->take_ending(ending);
                        has_ended = true;
                      }});
  // Cancelled handlers refer to objects in this scope.
  struct Closing {
    asio::io_context& io;
    wire::Channel& channel;
    ~Closing() {
      channel.close();
      io.restart();
      io.poll();
    }
  } closing{io, *channel};
  io.restart();
  quiet_ = Duration(0);
  RunningTime running_time(kMeetingLook);
  auto next_heartbeat = Clock::now() + options_.timing.heartbeat;
  while (!has_ended && !assigned_ && !ending_ && !handshake_->refusal()) {
    const auto now = Clock::now();
    if (handshake_->is_proved() && now >= next_heartbeat) {
      channel->send(Type::kHeartbeat, 0, {});
      next_heartbeat = now + options_.timing.heartbeat;
    }
    if (quiet_ > options_.timing.silence) {
      return fmt::format("{} has been silent for {:.1f} s", endpoint(),
                         Duration(options_.timing.silence).count());
    }
    quiet_ += running_time.advance();
    io.run_one_for(kMeetingLook);
  }
  if (const auto& refusal = handshake_->refusal()) {
    if (unproved_.is_final(*handshake_)) throw Error(refusal->code, refusal->message);
    if (std::exchange(last_reason_, refusal->message) != refusal->message) {
      log_info("waiting: {}", refusal->message);
    }
    return refusal->message;
  }
  unproved_.reset();
  return fmt::format("{} closed the connection", endpoint());
}

void MeetingClient::Impl::on_message(wire::Channel& channel, const wire::Header& header,
                                     std::string_view body) {
  quiet_ = Duration(0);
  const bool is_handled = handshake_->take(channel, header, body);
  if (handshake_->is_proved()) {
    last_answer_ = Clock::now();
    was_answered_ = true;
  }
  if (is_handled || header.type == Type::kAccepted || header.type == Type::kHeartbeat) return;
  if (header.type != Type::kAssigned) {
    fail(ExitCode::kBadData, "unknown message {}", static_cast<int>(header.type));
  }
  assigned_ = wire::decode<wire::Assignment>(body);
}

std::optional<wire::Assignment> MeetingClient::Impl::wait(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return assignment_ || error_; });
  if (error_) throw Error(*error_);
  return assignment_;
}

MeetingClient::MeetingClient(const MeetingClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MeetingClient::~MeetingClient() = default;
std::optional<wire::Assignment> MeetingClient::wait(milliseconds timeout) { return impl_->wait(timeout); }

}  // namespace tessera
