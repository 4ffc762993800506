#include "launch/meeting/meeting_farewell.h"

#include <asio.hpp>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/store/job_port.h"
#include "comm/store/store_channel.h"

namespace tessera {

class MeetingFarewell::Impl {
 public:
  explicit Impl(const FarewellOptions& options)
      : options_(options),
        job_port_(io_,
                  {.addresses = options.bind_addresses,
                   .port = options.port,
                   .secret = options.secret,
                   .run_id = options.run_id},
                  [this](const wire::JobPort::Entrant& entrant) { return answer(entrant); }),
        timer_(io_) {
    thread_ = wire::run_in_thread(io_);
  }
  ~Impl() {
    asio::post(io_, [this] {
      job_port_.close();
      wire::end_when(io_, timer_, [this] { return job_port_.is_empty(); });
    });
    thread_.join();
  }

  int port() const { return job_port_.port(); }

  bool wait_until_told(int num_nodes, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return num_told_ >= num_nodes; });
  }

 private:
  wire::Refusal answer(const wire::JobPort::Entrant& entrant) {
    if (entrant.type != wire::Type::kMeet)
      return {.code = ExitCode::kTryAgain, .message = "the job has ended"};
    {
      const std::lock_guard lock(mutex_);
      ++num_told_;
    }
    changed_.notify_all();
    return options_.message;
  }

  const FarewellOptions options_;
  asio::io_context io_;
  wire::JobPort job_port_;
  asio::steady_timer timer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_told_ = 0;  // mutex_

  std::thread thread_;  // declared last: it uses the other members
};

MeetingFarewell::MeetingFarewell(const FarewellOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MeetingFarewell::~MeetingFarewell() = default;
int MeetingFarewell::port() const { return impl_->port(); }
bool MeetingFarewell::wait_until_told(int num_nodes, std::chrono::milliseconds timeout) {
  return impl_->wait_until_told(num_nodes, timeout);
}

}  // namespace tessera
