#include "comm/store/store_channel.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/socket/host_lookup.h"
#include "platform/background_thread.h"

namespace tessera::wire {
namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFarewellTime{500};
constexpr std::chrono::milliseconds kFarewellLook{5};
// A peer that lets this much pile up unread is as good as gone.
constexpr size_t kMaxOutgoingBytes = 256 << 20;

asio::ip::address unmapped(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

// A process that ends with unread data resets the connection: whether it does is chance, so both count as a
// plain end.
std::string error_text(asio::error_code error) {
  const bool is_plain_end = error == asio::error::eof || error == asio::error::connection_reset;
  return is_plain_end ? std::string() : error.message();
}

void look_for_end(asio::io_context& io, asio::steady_timer& timer, std::function<bool()> done,
                  Clock::time_point limit) {
  if (done() || Clock::now() >= limit) return io.stop();
  timer.expires_after(kFarewellLook);
  timer.async_wait([&io, &timer, done = std::move(done), limit](asio::error_code error) mutable {
    if (!error) look_for_end(io, timer, std::move(done), limit);
  });
}

}  // namespace

std::string address_text(const asio::ip::address& address) { return unmapped(address).to_string(); }

bool is_loopback(const asio::ip::address& address) { return unmapped(address).is_loopback(); }

asio::ip::tcp::socket connect(asio::io_context& io, const std::string& host, int port,
                              std::chrono::steady_clock::time_point limit,
                              std::chrono::milliseconds connect_time) {
  std::vector<tcp::endpoint> endpoints;
  for (const std::string& address : HostLookup::system().addresses_of(host, limit)) {
    endpoints.emplace_back(asio::ip::make_address(address), static_cast<uint16_t>(port));
  }
  limit = std::min(limit, std::chrono::steady_clock::now() + connect_time);
  asio::error_code error;
  tcp::socket socket(io);
  std::optional<asio::error_code> result;
  asio::async_connect(socket, endpoints,
                      [&](asio::error_code outcome, const tcp::endpoint&) { result = outcome; });
  io.restart();
  while (!result && io.run_one_until(limit) > 0) {
  }
  if (!result) {
    socket.close(error);
    io.restart();
    while (!result) io.run_one();
    fail(ExitCode::kTryAgain, "{}:{} does not answer", host, port);
  }
  if (*result) fail(ExitCode::kTryAgain, "cannot connect to {}:{}: {}", host, port, result->message());
  return socket;
}

std::thread run_in_thread(asio::io_context& io) {
  return start_background_thread([&io] { io.run(); });
}

void end_when(asio::io_context& io, asio::steady_timer& timer, std::function<bool()> done) {
  look_for_end(io, timer, std::move(done), Clock::now() + kFarewellTime);
}

Channel::Channel(asio::ip::tcp::socket socket, uint32_t max_body_bytes)
    : socket_(std::move(socket)), max_body_bytes_(max_body_bytes) {
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void Channel::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  read_header();
}

asio::ip::tcp::endpoint Channel::local_endpoint() const {
  asio::error_code ignored;
  return socket_.local_endpoint(ignored);
}

void Channel::send(Type type, uint32_t request, std::string_view body) {
  if (!open_ || closing_) return;
  const auto header =
      encode_header({.type = type, .request = request, .body_bytes = static_cast<uint32_t>(body.size())});
  std::string message(reinterpret_cast<const char*>(header.data()), header.size());
  message.append(body);
  outgoing_bytes_ += message.size();
  outgoing_.push_back(std::move(message));
  if (outgoing_bytes_ > kMaxOutgoingBytes) {
    // Posted, not called here: the caller may be in the middle of something.
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->end({.reason = "does not read what it is sent"}); });
    return;
  }
  if (outgoing_.size() == 1) write_next();
}

void Channel::close_after_sending() {
  if (!open_ || closing_) return;
  closing_ = true;
  if (outgoing_.empty()) end_sending();
}

// Keeps reading until the peer closes as well: closing a socket with unread bytes resets the connection, and
// the peer might lose what it was sent.
void Channel::end_sending() {
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void Channel::close() {
  if (!open_) return;
  open_ = false;
  handlers_ = {};
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Channel::end(const Ending& ending) {
  if (!open_) return;
  const auto closed = std::move(handlers_.closed);
  close();
  if (closed) closed(ending);
}

void Channel::read_header() {
  asio::async_read(
      socket_, asio::buffer(header_bytes_), [self = shared_from_this()](asio::error_code error, size_t) {
        if (!self->open_) return;
        if (error) return self->end({.reason = error_text(error)});
        try {
          self->header_ = decode_header(self->header_bytes_);
        } catch (const Error& bad) {
          return self->end({.reason = bad.what(), .bad_message = true});
        }
        if (self->header_.body_bytes > self->max_body_bytes_) {
          return self->end(
              {.reason = fmt::format("a message of {}, at most {} are allowed",
                                     count_of(self->header_.body_bytes, "byte"), self->max_body_bytes_),
               .bad_message = true});
        }
        self->read_body();
      });
}

void Channel::read_body() {
  body_.resize(header_.body_bytes);
  asio::async_read(socket_, asio::buffer(body_), [self = shared_from_this()](asio::error_code error, size_t) {
    if (!self->open_) return;
    if (error) return self->end({.reason = error_text(error)});
    try {
      // A copy, as the handler may close this channel.
      const auto message = self->handlers_.message;
      if (!self->closing_) message(self->header_, self->body_);
    } catch (const Error& bad) {
      return self->end({.reason = bad.what(), .bad_message = true});
    }
    if (self->open_) self->read_header();
  });
}

void Channel::write_next() {
  asio::async_write(socket_, asio::buffer(outgoing_.front()),
                    [self = shared_from_this()](asio::error_code error, size_t) {
                      // Messages the peer sent before it disconnected are still read; the read side ends the
                      // connection.
                      if (error || !self->open_) {
                        self->outgoing_.clear();
                        self->outgoing_bytes_ = 0;
                        return;
                      }
                      self->outgoing_bytes_ -= self->outgoing_.front().size();
                      self->outgoing_.pop_front();
                      if (!self->outgoing_.empty()) return self->write_next();
                      if (self->closing_) self->end_sending();
                    });
}

}  // namespace tessera::wire
