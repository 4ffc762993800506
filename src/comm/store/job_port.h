// The port of a job: listens, and admits peers that prove knowledge of the job's secret and name. Anyone may
// connect; an unproven peer may send little and stay for a few seconds. If there are many, the connections of
// the address with the most are dropped for newer ones. Used only on the thread of its io_context.
#pragma once

#include <asio.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/socket/refusal_log.h"
#include "comm/store/store_channel.h"
#include "comm/store/store_proof.h"

namespace tessera::wire {

struct JobPortOptions {
  std::vector<std::string> addresses;  // to listen on; empty: all
  int port = 0;                        // 0: any free one
  std::string secret, run_id;          // of the job
};

class JobPort {
 public:
  using Duration = std::chrono::duration<double>;

  // A peer that has proved to belong to the job, and its request.
  struct Entrant {
    std::shared_ptr<Channel> channel;
    std::string remote;
    Type type;
    std::string request;
  };
  // Admits the entrant and sets new handlers on its channel, or returns why not. Error(kBadData) ends the
  // connection.
  using Admit = std::function<std::optional<Refusal>(const Entrant& entrant)>;

  // Error(kBadConfig) if the port is taken.
  JobPort(asio::io_context& io, const JobPortOptions& options, Admit admit);

  int port() const { return port_; }
  // Drops peers that have been silent for too long.
  void advance(Duration elapsed);
  // The last refusal caused by a user's mistake; "" if there was none.
  const std::string& last_refusal() const { return last_refusal_; }
  // Admits no more peers; refused ones may still have to read their refusal.
  void close();
  bool is_empty() const { return pending_.empty(); }

 private:
  struct PendingPeer {
    std::shared_ptr<Channel> channel;
    std::string remote;
    Nonce challenge;
    bool is_proved = false;
    Duration age{0};
  };

  void accept(asio::ip::tcp::acceptor& acceptor);
  void meet(asio::ip::tcp::socket socket);
  void make_room();
  void on_message(uint64_t number, const Header& header, std::string_view body);
  void hear_proof(PendingPeer& peer, const Header& header, std::string_view body);
  void refuse(PendingPeer& peer, const Refusal& refusal);

  asio::io_context& io_;
  const std::string key_;
  Admit admit_;
  std::deque<asio::ip::tcp::acceptor> acceptors_;
  int port_ = 0;
  bool closed_ = false;
  bool has_warned_ = false;
  std::map<uint64_t, PendingPeer> pending_;
  uint64_t next_number_ = 1;
  std::string last_refusal_;
  RefusalLog refusals_;
};

}  // namespace tessera::wire
