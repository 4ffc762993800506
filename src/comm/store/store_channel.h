// One connection that carries messages of the store, on either side. Used only on the thread of its
// io_context.
#pragma once

#include <asio.hpp>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "comm/store/store_wire.h"

namespace tessera::wire {

// IPv4-mapped IPv6 addresses are treated as IPv4.
std::string address_text(const asio::ip::address& address);
bool is_loopback(const asio::ip::address& address);

// A process that waits for others logs so after kFirstNotice, and then every kNextNotice.
inline constexpr std::chrono::milliseconds kFirstNotice{10'000};
inline constexpr std::chrono::milliseconds kNextNotice{30'000};

// Connects to the first address that accepts. Error(kTryAgain) if the name is not resolved by `limit`, or no
// address has accepted by then or within `connect_time` of the lookup. Runs `io` while waiting.
asio::ip::tcp::socket connect(asio::io_context& io, const std::string& host, int port,
                              std::chrono::steady_clock::time_point limit,
                              std::chrono::milliseconds connect_time = std::chrono::hours(24));

// The reason a connection ended.
struct Ending {
  std::string reason;        // "" = the peer closed it
  bool bad_message = false;  // it sent something malformed or a message that was rejected
};

// Runs `io` in a thread of its own (background_thread.h).
std::thread run_in_thread(asio::io_context& io);
// Stops `io` once `done()` is true, after half a second at the latest: peers read the last message and close
// within that time, a stopped peer does not. Uses `timer`; call it on the thread of `io`.
void end_when(asio::io_context& io, asio::steady_timer& timer, std::function<bool()> done);

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  struct Handlers {
    // An Error thrown here ends the connection, with its text as the reason.
    std::function<void(const Header& header, std::string_view body)> message;
    // Called once, unless close() was called before.
    std::function<void(const Ending& ending)> closed;
  };

  Channel(asio::ip::tcp::socket socket, uint32_t max_body_bytes);

  void start(Handlers handlers);
  // Takes effect with the next message.
  void set_handlers(Handlers handlers) { handlers_ = std::move(handlers); }
  void send(Type type, uint32_t request, std::string_view body);
  // Sends what is queued and nothing more, ignores incoming messages, and ends when the peer closes.
  void close_after_sending();
  void close();

  void set_max_body_bytes(uint32_t bytes) { max_body_bytes_ = bytes; }
  bool is_open() const { return open_; }
  asio::ip::tcp::endpoint local_endpoint() const;

 private:
  void read_header();
  void read_body();
  void write_next();
  void end_sending();
  void end(const Ending& ending);

  asio::ip::tcp::socket socket_;
  uint32_t max_body_bytes_;
  Handlers handlers_;
  bool open_ = true;
  bool closing_ = false;
  std::array<std::byte, kHeaderBytes> header_bytes_;
  Header header_;
  std::string body_;
  std::deque<std::string> outgoing_;
  size_t outgoing_bytes_ = 0;
};

}  // namespace tessera::wire
