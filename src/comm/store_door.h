// The port of a job: listens, and lets in who proves to know the job's secret. Anybody may connect; who has
// not proved anything may say little, stay for a few seconds, and is forgotten for a newer one when there are
// many. Lives on the thread of its io_context.
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

#include "comm/store_channel.h"
#include "comm/store_proof.h"

namespace tessera::wire {

struct DoorOptions {
  std::vector<std::string> addresses;  // that it listens on; empty: all
  int port = 0;                        // 0: any free one
  std::string secret;
};

class Door {
 public:
  using Duration = std::chrono::duration<double>;

  // Who has proved to be of the job, and what it asks for.
  struct Entrant {
    std::shared_ptr<Channel> channel;
    std::string remote;
    Type type;
    std::string request;
  };
  // Takes the entrant in, with handlers of its own for the channel, or says why not. Error(kBadData) ends the
  // connection.
  using Admit = std::function<std::optional<Refusal>(const Entrant& entrant)>;

  // Error(kBadConfig) when the port is taken.
  Door(asio::io_context& io, const DoorOptions& options, Admit admit);

  int port() const { return port_; }
  // Drops those who have said nothing for too long.
  void advance(Duration elapsed);
  // The last one that proves a user's mistake; "" when there was none.
  const std::string& last_refusal() const { return last_refusal_; }
  // Lets nobody in any more; those who were refused have yet to read it.
  void close();
  bool is_empty() const { return strangers_.empty(); }

 private:
  struct Stranger {
    std::shared_ptr<Channel> channel;
    std::string remote;
    Nonce challenge;
    Duration age{0};
  };

  void accept(asio::ip::tcp::acceptor& acceptor);
  void meet(asio::ip::tcp::socket socket);
  void on_message(uint64_t number, const Header& header, std::string_view body);
  void refuse(Stranger& stranger, const Refusal& refusal);

  asio::io_context& io_;
  const std::string secret_;
  Admit admit_;
  std::deque<asio::ip::tcp::acceptor> acceptors_;
  int port_ = 0;
  bool closed_ = false;
  bool has_warned_ = false;
  std::map<uint64_t, Stranger> strangers_;
  uint64_t next_number_ = 1;
  std::string last_refusal_;
};

}  // namespace tessera::wire
