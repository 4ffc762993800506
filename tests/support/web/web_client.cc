#include "support/web/web_client.h"

#include <poll.h>
#include <sys/socket.h>

#include "base/error.h"
#include "comm/socket/tcp_socket.h"

namespace tessera {
namespace {

void wait_for(int fd, short events) {
  constexpr int kLongest_ms = 20'000;
  pollfd poll = {fd, events, 0};
  TESSERA_CHECK(::poll(&poll, 1, kLongest_ms) == 1, "nothing happens on the connection");
}

}  // namespace

WebClient::WebClient(int port, int receive_bytes) {
  const SocketAddress address = parse_address("127.0.0.1", port);
  socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_bytes > 0) {
    ::setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  }
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.storage);
  TESSERA_CHECK(::connect(fd(), generic, address.length) == 0, "no server on port {}", port);
}

bool WebClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    wait_for(fd(), POLLOUT);
    const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string WebClient::read_until(std::string_view text) {
  while (true) {
    const size_t found = text.empty() ? std::string::npos : buffer_.find(text);
    if (found != std::string::npos || is_closed_) {
      const size_t end = found == std::string::npos ? buffer_.size() : found + text.size();
      std::string result = buffer_.substr(0, end);
      buffer_.erase(0, end);
      return result;
    }
    wait_for(fd(), POLLIN);
    char bytes[16 << 10];
    const ssize_t count = ::recv(fd(), bytes, sizeof(bytes), 0);
    is_closed_ = count <= 0;
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
  }
}

std::string web_get(int port, const std::string& target, const std::string& headers) {
  WebClient client(port);
  client.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + "\r\n");
  return client.read_to_end();
}

std::string body_of(const std::string& response) {
  const size_t end = response.find("\r\n\r\n");
  return end == std::string::npos ? "" : response.substr(end + 4);
}

}  // namespace tessera
