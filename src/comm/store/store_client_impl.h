// Implementation of StoreClient: joining is in store_client_join.cc, everything after it in store_client.cc.
// Not to be included elsewhere.
#pragma once

#include <asio.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/socket/address.h"
#include "comm/store/running_time.h"
#include "comm/store/store_channel.h"
#include "comm/store/store_client.h"
#include "comm/store/store_proof.h"
#include "comm/store/store_server.h"

namespace tessera {

class StoreClient::Impl final : public StoreClient {
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::duration<double>;
  using milliseconds = std::chrono::milliseconds;
  using Type = wire::Type;

  static constexpr milliseconds kPartingTime{1'000};  // for what a process sends on its way out

 public:
  Impl(const World& world, const StoreOptions& options, bool is_agent)
      : world_(world),
        options_(options),
        is_agent_(is_agent),
        failures_(*this),
        unproved_(std::min(options.silence, options.rendezvous_timeout / 4)),
        timer_(io_) {}
  ~Impl() override;

  void join();
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  void watch(const std::string& key) override;
  std::optional<std::string> watched() const override;
  void check_same_settings(const std::map<std::string, std::string>& settings) override;
  void report_own_failure(ExitCode code, const std::string& message) override;
  void report(const Failure& failure) override;
  std::optional<std::string> hand_in(const std::string& node_report, milliseconds timeout) override;
  void leave() override;

  FailureDetector& failures() override { return failures_; }
  bool has_lost_store() const override;
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::vector<std::string>& addresses() const override { return addresses_; }
  std::string local_address() const override { return local_.address; }
  milliseconds rendezvous_timeout() const override { return options_.rendezvous_timeout; }
  // Different for every start, so that nothing sent in an earlier start proves anything now.
  std::string job_key() const override {
    return std::string(
        text_of(hmac_sha256(world_.secret, {"job", world_.run_id, std::to_string(world_.restart_count)})));
  }

 private:
  enum class State { kOut, kAsked, kAccepted, kFormed, kEnded };

  struct Reply {
    Type type;
    std::string body;
  };

  class Failures : public FailureDetector {
   public:
    explicit Failures(Impl& impl) : impl_(impl) {}

   protected:
    Failure settle(Failure suspicion) override { return impl_.settle(std::move(suspicion)); }

   private:
    Impl& impl_;
  };

  std::string endpoint() const { return fmt::format("{}:{}", world_.master_addr, world_.master_port); }
  std::string describe_me() const;
  std::string describe_store() const;

  // One attempt each; returns "" or the reason it failed.
  std::string try_join(Clock::time_point deadline);
  std::string ask_to_join(Clock::time_point deadline);
  std::string wait_until_formed(Clock::time_point deadline);
  bool is_notice_due();
  void disconnect();
  wire::JoinRequest join_request() const;
  void learn_seats();

  void on_message(const wire::Header& header, std::string_view body);
  void on_closed(const wire::Ending& ending);
  void start_ticking();
  void tick();
  void lose_store(const std::string& how);
  Failure settle(Failure suspicion);

  // Sends a request and waits for the reply; nullopt at the timeout, or once there can be none, as after
  // most verdicts.
  std::optional<Reply> ask(Type type, const std::string& body, milliseconds timeout,
                           bool after_verdict = false);
  // Same for a request that must be answered.
  std::string request(Type type, const std::string& body, milliseconds timeout, const std::string& what);
  void send(Type type, uint32_t request, std::string body);

  const World world_;
  const StoreOptions options_;
  const bool is_agent_;
  std::unique_ptr<StoreServer> server_;
  Failures failures_;
  int exceptions_at_join_ = 0;
  wire::UnprovedRefusals unproved_;
  Clock::time_point next_notice_;
  uint64_t num_settings_checks_ = 0;
  std::vector<std::string> hosts_;
  std::vector<std::string> addresses_;
  LocalAddress local_;

  // Used on the thread, or before it starts.
  asio::io_context io_;
  asio::steady_timer timer_;
  std::shared_ptr<wire::Channel> channel_;
  RunningTime running_time_{Duration(0)};
  Duration since_heartbeat_{0};
  Duration quiet_{0};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_ from here on.
  State state_ = State::kOut;
  bool store_gone_ = false;
  std::string problem_;  // while joining
  std::optional<wire::Handshake> handshake_;
  std::optional<Failure> verdict_;
  std::vector<wire::Seat> seats_;
  uint32_t next_request_ = 1;
  std::map<uint32_t, std::optional<Reply>> replies_;
  uint32_t watch_request_ = 0;  // 0 = nothing is watched

  std::thread thread_;
};

}  // namespace tessera
