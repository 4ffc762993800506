// Requests and responses of a WebServer's handlers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// A GET or HEAD request; a HEAD is answered like a GET, and the server leaves out the body.
struct WebRequest {
  std::string path;                          // "/metrics", as sent: escapes are not decoded
  std::map<std::string, std::string> query;  // decoded; of a repeated name the first value
  std::string accept;                        // the Accept header
  std::optional<int64_t> last_event_id;      // of a browser that reconnects to an event stream
};

// Nothing but the server's own files, no frames around it, no form.
inline constexpr std::string_view kStrictContentSecurityPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct WebResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  // nullptr = empty; shared by all connections that send it
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string content_security_policy = std::string(kStrictContentSecurityPolicy);
  // An event stream, which stays open: the body (event_text() of the events the client has missed) is
  // followed by the events that WebServer::publish() sends to this channel. "" = an ordinary response.
  std::string channel = {};
  // For a channel: events up to this id are part of the body; the client does not get them again.
  int64_t last_event_id = 0;
};

WebResponse text_response(int status, std::string text,
                          std::string content_type = "text/plain; charset=utf-8");

// A server-sent event. Ids count up from 1 within a channel.
struct WebEvent {
  int64_t id = 0;
  std::string type;  // "" = "message"
  std::string data;  // any text; its lines become data fields
};

// The event as it is sent.
std::string event_text(const WebEvent& event);

// The status line and headers of a response, security headers included, up to the empty line. Without a
// length for an event stream, which ends with the connection.
std::string response_head(const WebResponse& response, bool keep_alive);

// Splits the target of a request ("/page?run=a%20b&token=x").
WebRequest parse_target(std::string_view target);

}  // namespace tessera
