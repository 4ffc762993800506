// The only file that includes Boost.Beast, whose headers take long to compile.
#include "monitor/http/web_server.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/ranks/proof.h"
#include "comm/socket/port_owner.h"
#include "monitor/http/web_access.h"
#include "platform/background_thread.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using net::ip::tcp;
using Text = std::shared_ptr<const std::string>;
using boost::system::error_code;

// Written at a time: a reader that takes a large body slowly still makes progress within the timeout.
constexpr size_t kSliceBytes = 64 << 10;
constexpr std::chrono::milliseconds kPauseAfterError{100};
constexpr std::chrono::milliseconds kTimeToFinish{1'000};  // for what is unsent when the server ends
// Most of the files that the process may open are for its own work.
constexpr int64_t kShareOfOpenFiles = 4;

// A program that this process starts must not keep the port.
void close_on_exec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

tcp::acceptor listen_for_web(net::io_context& io, const WebServerOptions& options) {
  const auto refuse = [&](const error_code& error) {
    const bool is_taken = error == net::error::address_in_use;
    const std::string owner = is_taken ? describe_port_owner(options.port) : "";
    fail(ExitCode::kBadConfig, "cannot listen on {} port {}: {}{}: {}", options.host, options.port,
         error.message(), owner.empty() ? "" : " by " + owner,
         is_taken
             ? "choose another --metrics_port, or 0 for any free one"
             : "--metrics_host takes an address of this machine, --metrics_port a port that you may use");
  };
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) refuse(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) refuse(error);
  close_on_exec(acceptor.native_handle());
  return acceptor;
}

int connection_limit(int wanted) {
  const int64_t files = open_file_limit().value_or(INT64_MAX);
  return static_cast<int>(std::clamp<int64_t>(files / kShareOfOpenFiles, 1, wanted));
}

class WebConnection;

// The listening socket, the connections, and the thread on which everything but publish() happens.
class WebThread {
 public:
  explicit WebThread(const WebServerOptions& settings)
      : options(settings),
        max_connections_(connection_limit(settings.max_connections)),
        acceptor_(listen_for_web(io_, settings)),
        endpoint_(acceptor_.local_endpoint()),
        access_(
            settings.token.empty() && !endpoint_.address().is_loopback() ? random_secret() : settings.token,
            endpoint_.address().is_loopback(), endpoint_.port()),
        timer_(io_) {}
  ~WebThread();

  void add(const std::string& path, WebServer::Access access, WebServer::Handler handler) {
    routes_[path] = {access, std::move(handler)};
  }
  void start() {
    accept();
    thread_ = start_background_thread([this] {
      // Requests can wait; the threads that compute cannot.
      constexpr int kNiceness = 10;
      ::setpriority(PRIO_PROCESS, 0, kNiceness);  // on Linux: of this thread
      serve();
    });
  }
  const tcp::endpoint& endpoint() const { return endpoint_; }
  const WebAccess& access() const { return access_; }
  void publish(const std::string& channel, const WebEvent& event);

  // For connections.
  WebResponse answer(const http::request_header<>& header);
  uint64_t enter(WebConnection* connection);
  void leave(uint64_t number);
  void begin_heartbeats();

  const WebServerOptions options;
  // Event streams, and requests that may be about to become one: without any, publish() has nothing to do.
  std::atomic<int64_t> num_streams = 0;

 private:
  struct Route {
    WebServer::Access access;
    WebServer::Handler handler;
  };

  void serve();
  void accept();
  bool make_room();
  void send_to_streams(const std::string* channel, int64_t id, const Text& text);
  void beat();
  void close();

  const size_t max_connections_;
  std::map<std::string, Route, std::less<>> routes_;
  std::map<uint64_t, WebConnection*> connections_;  // outlives io_, whose operations own them
  uint64_t next_number_ = 1;
  bool beats_ = false;
  bool closing_ = false;
  net::io_context io_{1};
  tcp::acceptor acceptor_;
  const tcp::endpoint endpoint_;
  const WebAccess access_;
  net::steady_timer timer_;  // heartbeats; at the end, the time that is left
  std::thread thread_;
};

// Pending operations keep it alive.
class WebConnection : public std::enable_shared_from_this<WebConnection> {
 public:
  WebConnection(tcp::socket socket, WebThread& server)
      : server_(server),
        stream_(std::move(socket)),
        buffer_(2 * server.options.max_header_bytes),
        number_(server.enter(this)) {}
  ~WebConnection() {
    if (!channel_.empty()) --server_.num_streams;
    server_.leave(number_);
  }

  void start() { read(server_.options.request_timeout); }
  const std::string& channel() const { return channel_; }
  bool is_idle() const { return is_idle_; }
  void close() { stream_.close(); }
  void discard_on_close(bool discards) {
    error_code ignored;
    stream_.socket().set_option(net::socket_base::linger(discards, 0), ignored);
  }

  // An event or comment of the channel. Event `id` 0: a comment.
  void send(int64_t id, const Text& text) {
    if (id != 0 && id <= last_event_id_) return;
    pending_bytes_ += text->size();
    if (pending_bytes_ > server_.options.max_pending_bytes) return close();
    enqueue({text, true});
  }
  // Closes once everything is sent.
  void finish() {
    if (queue_.empty()) return close();
    keep_alive_ = false;
    if (!channel_.empty()) --server_.num_streams;
    channel_.clear();
  }

 private:
  void read(std::chrono::milliseconds timeout);
  void on_request(error_code error);
  void respond(const WebResponse& response, bool has_body);
  struct Piece {
    Text text;
    bool is_event = false;
  };
  void enqueue(Piece piece);
  void write();
  void on_sent();
  void watch_for_end();
  void drain();
  void ignore_input();

  WebThread& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  const uint64_t number_;
  bool is_idle_ = false;     // waits for a request
  bool is_watched_ = false;  // watch_for_end() is reading
  bool keep_alive_ = false;
  std::string channel_;  // of an event stream
  int64_t last_event_id_ = 0;
  std::deque<Piece> queue_;   // to be written
  size_t written_bytes_ = 0;  // of its first element
  size_t pending_bytes_ = 0;  // events in the queue
  std::array<char, 4096> ignored_;
};

void WebConnection::read(std::chrono::milliseconds timeout) {
  is_idle_ = true;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_.options.max_header_bytes));
  stream_.expires_after(timeout);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->on_request(error); });
}

void WebConnection::on_request(error_code error) {
  is_idle_ = false;
  keep_alive_ = false;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return respond(text_response(431, "The request's header is too long.\n"), true);
  }
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  if (error && (!is_http || error == http::error::end_of_stream)) return drain();
  if (error) return respond(text_response(400, "Not an HTTP request.\n"), true);

  const http::request_header<>& header = parser_->get();
  const bool is_head = header.method() == http::verb::head;
  if (!is_head && header.method() != http::verb::get) {
    WebResponse refusal = text_response(405, "Only GET and HEAD.\n");
    refusal.headers.emplace_back("Allow", "GET, HEAD");
    return respond(refusal, true);
  }
  if (parser_->chunked() || parser_->content_length().value_or(0) > 0) {
    return respond(text_response(400, "A request with a body.\n"), !is_head);
  }
  keep_alive_ = parser_->keep_alive();
  ++server_.num_streams;  // before a handler looks at what has been published
  WebResponse response = server_.answer(header);
  if (is_head || response.channel.empty()) --server_.num_streams;
  respond(response, !is_head);
}

void WebConnection::respond(const WebResponse& response, bool has_body) {
  const bool is_stream = !response.channel.empty();
  if (is_stream) keep_alive_ = false;
  enqueue({std::make_shared<const std::string>(response_head(response, keep_alive_))});
  if (!has_body) return;
  if (response.body != nullptr && !response.body->empty()) enqueue({response.body});
  if (!is_stream) return;
  channel_ = response.channel;
  last_event_id_ = response.last_event_id;
  server_.begin_heartbeats();
  watch_for_end();
}

void WebConnection::enqueue(Piece piece) {
  queue_.push_back(std::move(piece));
  if (queue_.size() == 1) write();
}

void WebConnection::write() {
  const std::string& text = *queue_.front().text;
  const net::const_buffer rest = net::buffer(text) + written_bytes_;
  stream_.expires_after(server_.options.write_timeout);
  // If this takes too long, the connection is reset: an orderly close would keep data that the reader does
  // not take.
  discard_on_close(true);
  stream_.async_write_some(net::buffer(rest, kSliceBytes),
                           [self = shared_from_this()](error_code error, size_t num_bytes) {
                             if (error) return self->close();
                             self->discard_on_close(false);
                             self->written_bytes_ += num_bytes;
                             self->on_sent();
                           });
}

void WebConnection::on_sent() {
  const Piece& piece = queue_.front();
  if (written_bytes_ < piece.text->size()) return write();
  if (piece.is_event) pending_bytes_ -= piece.text->size();
  queue_.pop_front();
  written_bytes_ = 0;
  if (!queue_.empty()) return write();
  if (!channel_.empty()) return;
  if (!keep_alive_) return drain();
  read(server_.options.idle_timeout);
}

// A client has nothing more to say on an event stream: whatever comes means that it has ended.
void WebConnection::watch_for_end() {
  is_watched_ = true;
  stream_.expires_never();
  stream_.async_read_some(net::buffer(ignored_),
                          [self = shared_from_this()](error_code, size_t) { self->close(); });
}

// Lets the client read the response before the connection ends: closing with unread input would reset it.
void WebConnection::drain() {
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  if (is_watched_) return;
  stream_.expires_after(kTimeToFinish);
  ignore_input();
}

void WebConnection::ignore_input() {
  stream_.async_read_some(net::buffer(ignored_), [self = shared_from_this()](error_code error, size_t) {
    if (!error) self->ignore_input();
  });
}

WebThread::~WebThread() {
  if (!thread_.joinable()) return;
  net::post(io_, [this] { close(); });
  thread_.join();
}

void WebThread::close() {
  closing_ = true;
  acceptor_.close();
  // Connections that end leave the map.
  std::vector<std::shared_ptr<WebConnection>> all;
  for (const auto& [number, connection] : connections_) all.push_back(connection->shared_from_this());
  for (const auto& connection : all) connection->finish();
  timer_.expires_after(kTimeToFinish);
  timer_.async_wait([this](error_code) { io_.stop(); });
  if (connections_.empty()) io_.stop();
}

// Until the end, whatever fails: a request for which there is no memory must not end the process.
void WebThread::serve() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      log_warning("serving HTTP on port {}: {}", endpoint_.port(), error.what());
    }
  }
}

uint64_t WebThread::enter(WebConnection* connection) {
  connections_.emplace(next_number_, connection);
  return next_number_++;
}

void WebThread::leave(uint64_t number) {
  connections_.erase(number);
  if (closing_ && connections_.empty()) io_.stop();
}

bool WebThread::make_room() {
  if (connections_.size() < max_connections_) return true;
  for (const auto& [number, connection] : connections_) {
    if (!connection->is_idle()) continue;
    connection->close();
    return true;
  }
  return false;
}

void WebThread::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (closing_) return;
    if (!error) {
      if (make_room()) {
        close_on_exec(socket.native_handle());
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        std::make_shared<WebConnection>(std::move(socket), *this)->start();
      }
      return accept();
    }
    // The process is out of descriptors, or the connection has already ended. The pause avoids a busy loop.
    auto pause = std::make_shared<net::steady_timer>(io_, kPauseAfterError);
    pause->async_wait([this, pause](error_code) {
      if (!closing_) accept();
    });
  });
}

WebResponse WebThread::answer(const http::request_header<>& header) {
  const auto text_of = [&](http::field field) {
    const auto value = header[field];
    return std::string_view(value.data(), value.size());
  };
  if (!access_.is_expected_host(text_of(http::field::host))) {
    return text_response(403, "This server is for its own machine only: use the name localhost.\n");
  }
  WebRequest request = parse_target({header.target().data(), header.target().size()});
  request.accept = text_of(http::field::accept);
  const auto last_id = header["Last-Event-ID"];
  int64_t id = 0;
  if (std::from_chars(last_id.begin(), last_id.end(), id).ec == std::errc()) request.last_event_id = id;

  const auto route = routes_.find(request.path);
  if (route == routes_.end()) return text_response(404, "There is nothing here.\n");
  if (route->second.access == WebServer::Access::kToken &&
      !access_.is_allowed(text_of(http::field::authorization), text_of(http::field::cookie))) {
    const auto token = request.query.find("token");
    if (token == request.query.end() || !access_.is_token(token->second)) {
      WebResponse refusal = text_response(
          401, "This needs a token: /?token=TOKEN, or the header Authorization: Bearer TOKEN.\n");
      refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
      return refusal;
    }
    // A person's browser: the token leaves its address bar and history.
    if (request.accept.find("text/html") != std::string::npos) {
      WebResponse redirect = text_response(303, "");
      redirect.headers = {{"Location", request.path}, {"Set-Cookie", access_.cookie()}};
      return redirect;
    }
  }
  try {
    return route->second.handler(request);
  } catch (const std::exception& error) {
    log_warning("{}: {}", request.path, error.what());
    return text_response(500, "An error of this program; its log has more.\n");
  }
}

void WebThread::publish(const std::string& channel, const WebEvent& event) {
  if (num_streams == 0) return;
  net::post(io_,
            [this, channel, id = event.id, text = std::make_shared<const std::string>(event_text(event))] {
              send_to_streams(&channel, id, text);
            });
}

// Sends to the streams of one channel; nullptr: to all.
void WebThread::send_to_streams(const std::string* channel, int64_t id, const Text& text) {
  std::vector<std::shared_ptr<WebConnection>> streams;  // streams that end leave the map
  for (const auto& [number, connection] : connections_) {
    const std::string& of = connection->channel();
    if (channel == nullptr ? !of.empty() : of == *channel) streams.push_back(connection->shared_from_this());
  }
  for (const auto& stream : streams) stream->send(id, text);
}

void WebThread::begin_heartbeats() {
  if (!std::exchange(beats_, true)) beat();
}

// While there are streams: an idle server has no timer.
void WebThread::beat() {
  timer_.expires_after(options.heartbeat);
  timer_.async_wait([this](error_code error) {
    if (error || closing_) return;
    beats_ = num_streams > 0;
    if (!beats_) return;
    send_to_streams(nullptr, 0, std::make_shared<const std::string>(": still here\n\n"));
    beat();
  });
}

}  // namespace

class WebServer::Impl : public WebThread {
 public:
  using WebThread::WebThread;
};

WebServer::WebServer(const WebServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
WebServer::~WebServer() = default;

void WebServer::add(const std::string& path, Access access, Handler handler) {
  impl_->add(path, access, std::move(handler));
}
void WebServer::start() { impl_->start(); }
int WebServer::port() const { return impl_->endpoint().port(); }
const std::string& WebServer::token() const { return impl_->access().token(); }
bool WebServer::is_local() const { return impl_->endpoint().address().is_loopback(); }

std::string WebServer::url() const {
  const net::ip::address address = impl_->endpoint().address();
  std::string host = address.is_unspecified() ? host_name() : impl_->options.host;
  if (host.find(':') != host.npos) host = "[" + host + "]";
  return fmt::format("http://{}:{}", host, port());
}

void WebServer::publish(const std::string& channel, const WebEvent& event) { impl_->publish(channel, event); }

}  // namespace tessera
