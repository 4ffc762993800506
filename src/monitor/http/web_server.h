// A small read-only HTTP/1.1 server inside a process that has other work: one background thread serves all
// connections; none of them can delay another or the caller. Only GET and HEAD; server-sent events.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "monitor/http/web_message.h"

namespace tessera {

struct WebServerOptions {
  std::string host = "127.0.0.1";  // name or address to listen on
  int port = 0;                    // 0 = any free one
  // Asked for on every path of Access::kToken: "Authorization: Bearer TOKEN", or ?token=TOKEN, for which a
  // browser gets a cookie. "" = none on loopback, a random one elsewhere.
  std::string token = {};

  // A connection beyond these takes the place of one that waits for a request, or is refused.
  int max_connections = 512;
  size_t max_header_bytes = 8 << 10;
  // Events that an event stream has not taken yet; one with more is closed, and its client reconnects.
  size_t max_pending_bytes = 1 << 20;
  std::chrono::milliseconds request_timeout{10'000};  // for the whole header of the first request
  std::chrono::milliseconds idle_timeout{60'000};     // for the next request
  std::chrono::milliseconds write_timeout{30'000};    // in which a reader must take something
  std::chrono::milliseconds heartbeat{15'000};        // a comment in event streams: proxies keep them open
};

class WebServer {
 public:
  // kOpen: no token needed.
  enum class Access { kToken, kOpen };
  // Called on the server's thread; must not block it. An exception becomes status 500.
  using Handler = std::function<WebResponse(const WebRequest&)>;

  // Listens. Error(kBadConfig) in one line if that is impossible.
  explicit WebServer(const WebServerOptions& options);
  // Closes all connections; event streams get up to a second to take what was published.
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  // Before start(). Other paths are answered with 404.
  void add(const std::string& path, Access access, Handler handler);
  void start();

  int port() const;
  bool is_local() const;             // listens on loopback only
  const std::string& token() const;  // "" = none
  // "http://127.0.0.1:9404".
  std::string url() const;

  // Sends the event to the clients of the channel, if there are any. Never waits. A handler that returns a
  // stream, and publishers, agree on the client's missed events under a lock of their own: every event is
  // added there before it is published.
  void publish(const std::string& channel, const WebEvent& event);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
