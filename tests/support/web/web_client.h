// For tests of the HTTP server: a client that sends exactly what it is told to.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace tessera {

// A blocking connection to 127.0.0.1. Every wait ends after 20 s with a failed check.
class WebClient {
 public:
  // `receive_bytes`: the size of the receive buffer, 0 = the system's.
  explicit WebClient(int port, int receive_bytes = 0);

  // False if the server has closed the connection.
  bool send(std::string_view bytes);
  // Reads until `text` has come, or the end; returns everything read since the last call, up to its end.
  std::string read_until(std::string_view text);
  std::string read_to_end() { return read_until(""); }
  bool is_closed() const { return is_closed_; }  // seen by a read
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::string buffer_;
  bool is_closed_ = false;
};

// GET with Host: localhost on a connection of its own; further headers with their line ends. The whole
// response.
std::string web_get(int port, const std::string& target, const std::string& headers = "");
// The part after the empty line.
std::string body_of(const std::string& response);

}  // namespace tessera
