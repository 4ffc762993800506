// HTTP requests with libcurl: one answer for one request; redirects and retries are the caller's.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "hub/hub_answers.h"
#include "hub/hub_settings.h"

namespace tessera {

struct HttpRequest {
  std::string url;
  bool is_head = false;
  std::string token;                            // sent as "Authorization: Bearer ..."; "" = none
  std::string range;                            // "0-99"; "" = the whole
  std::string basic_credentials = {};           // "user:password", as Basic authorization; "" = none
  std::optional<std::string> posted_json = {};  // makes it a POST of this body
  std::chrono::seconds limit{0};  // for the whole request; 0 = HubSettings::timeout alone applies
  std::string resolved = {};      // "host:port:address,...": where the host is; "" = the system is asked
};

struct HttpAnswer {
  int status = 0;
  HttpHeaders headers;
  std::string body;  // the part that the sink did not take

  std::string header(const std::string& name) const;  // "" if there is none
};

// No complete answer. what() is one line that names the host and says what to do.
class HttpFailure : public std::runtime_error {
 public:
  // `advice` is for a request to the Hub.
  HttpFailure(const std::string& cause, const std::string& advice, bool is_transient)
      : std::runtime_error(advice.empty() ? cause : cause + ": " + advice),
        cause_(cause),
        is_transient_(is_transient) {}
  const std::string& cause() const { return cause_; }  // the message without the advice
  bool is_transient() const { return is_transient_; }  // trying again may help

 private:
  std::string cause_;
  bool is_transient_;
};

// A connection that is kept open between requests to one host. Used by one thread at a time.
class HttpConnection {
 public:
  explicit HttpConnection(const HubSettings& settings);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Receives the body of an answer with status 200 or 206, whose status and headers are known by then; false
  // ends the request, which is then complete. Other bodies, and all without a sink, become HttpAnswer::body,
  // up to 64 MiB.
  using Sink = std::function<bool(const HttpAnswer&, std::string_view)>;
  // Throws HttpFailure, and what the sink throws.
  HttpAnswer perform(const HttpRequest& request, const Sink& sink = {});

 private:
  struct Transfer;
  const HubSettings& settings_;
  std::string detail_;  // libcurl's own message
  void* curl_;          // CURL*
};

// "https://host:port" of an address, in lower case; "" if it has none.
std::string origin_of(std::string_view url);
// The address to which a Location header leads from `url`; "" if it is not one.
std::string redirected_url(const std::string& url, const std::string& location);
// Escapes what may not stand in a path, but not slashes.
std::string escaped_path(std::string_view path);

}  // namespace tessera
