// Implementation of StoreServer: joining is in store_server_join.cc, everything after it in store_server.cc.
// Not to be included elsewhere.
#pragma once

#include <asio.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/ranks/verdict.h"
#include "comm/store/job_port.h"
#include "comm/store/node_reports.h"
#include "comm/store/running_time.h"
#include "comm/store/store_server.h"
#include "comm/store/store_values.h"

namespace tessera {

// "rank 3 on host b", "the agent of node 1 on host b".
std::string describe_member(MemberId id, const std::string& host);

class StoreServer::Impl final : public StoreServer {
 public:
  explicit Impl(const StoreServerOptions& options);
  ~Impl() override;

  int port() const override { return job_port_.port(); }
  std::optional<Failure> failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void report(const Failure& failure) override;
  bool wait_until_over(std::chrono::milliseconds timeout) override;
  std::map<int, std::string> node_reports(std::chrono::milliseconds timeout) override;
  void answer_node_reports(const std::string& place) override {
    on_thread([&] { return reports_.set_place(place), true; });
  }
  std::optional<double> silence_of_agent(int node) override {
    return on_thread([&] { return reports_.silence_s(node); });
  }
  std::string missing() override {
    return on_thread([this] { return describe_missing(); });
  }
  std::string present() override {
    return on_thread([this] { return describe_present(); });
  }
  int num_waiting_nodes() override {
    return on_thread([this] { return count_waiting_nodes(); });
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Duration = Verdict::Duration;

  // A member and its connection.
  struct Peer {
    std::shared_ptr<wire::Channel> channel;
    MemberId id;
    wire::JoinRequest who;
    Duration quiet{0};  // since it was last heard from
  };

  std::optional<wire::Refusal> admit(const wire::JobPort::Entrant& entrant);
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
  void report_now(const Failure& failure, int reporting_node);
  bool is_seated(uint64_t number, const Peer& peer) const;
  void announce_verdict();
  bool awaits_node_report() const;
  // Runs body() on the thread and returns its result.
  template <typename Body>
  auto on_thread(const Body& body) -> decltype(body()) {
    std::promise<decltype(body())> answer;
    asio::post(io_, [&] { answer.set_value(body()); });
    return answer.get_future().get();
  }
  std::string describe_missing() const;
  std::string describe_present() const;
  int count_waiting_nodes() const;
  void update_over();

  const StoreServerOptions options_;
  asio::io_context io_;
  wire::JobPort job_port_;
  asio::steady_timer timer_;
  std::chrono::nanoseconds tick_;
  RunningTime running_time_;
  Duration since_heartbeat_{0};

  std::map<uint64_t, Peer> peers_;
  uint64_t next_number_ = 1;
  std::map<MemberId, uint64_t> seats_;  // members present now
  // Nodes that want to take part in the next start, by host and process id: when they last asked.
  std::map<std::pair<std::string, int64_t>, Clock::time_point> waiting_;
  std::set<MemberId> left_;        // left in order, after the job was complete
  std::vector<wire::Seat> ranks_;  // set when the job was complete
  bool formed_ = false;
  std::set<int> agents_seen_;
  bool agents_are_there_ = false;
  Duration waited_for_agents_{0};
  std::string reached_at_;  // a non-loopback address of this machine that a member connected to
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

}  // namespace tessera
