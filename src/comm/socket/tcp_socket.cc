#include "comm/socket/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/error.h"

namespace tessera {
namespace {

const sockaddr* generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

void set_flag(int fd, int level, int option) {
  const int on = 1;
  ::setsockopt(fd, level, option, &on, sizeof(on));
}

}  // namespace

SocketAddress parse_address(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    fail(ExitCode::kBadConfig, "'{}': expected a numeric IPv4 or IPv6 address", address);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  SocketAddress result;
  result.length = found->ai_addrlen;
  std::copy_n(reinterpret_cast<const char*>(found->ai_addr), found->ai_addrlen,
              reinterpret_cast<char*>(&result.storage));
  return result;
}

UniqueFd listen_on(const std::string& address, int port) {
  const SocketAddress target = parse_address(address, port);
  UniqueFd socket(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail_errno(ExitCode::kIoError, errno, "cannot open a socket");
  set_flag(socket.get(), SOL_SOCKET, SO_REUSEADDR);
  if (::bind(socket.get(), generic(target), target.length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    fail_errno(ExitCode::kIoError, errno, fmt::format("cannot listen on {} port {}", address, port));
  }
  return socket;
}

int local_port(const UniqueFd& socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    fail_errno(ExitCode::kIoError, errno, "cannot read the port of a socket");
  }
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

UniqueFd begin_connect(const SocketAddress& address) {
  UniqueFd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail_errno(ExitCode::kIoError, errno, "cannot open a socket");
  // Messages are written whole; waiting for more to send would only delay their end.
  set_flag(socket.get(), IPPROTO_TCP, TCP_NODELAY);
  if (::connect(socket.get(), generic(address), address.length) != 0 && errno != EINPROGRESS) return {};
  return socket;
}

int connect_result(const UniqueFd& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

UniqueFd accept_from(const UniqueFd& listener) {
  UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) {
    set_flag(socket.get(), IPPROTO_TCP, TCP_NODELAY);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    fail_errno(ExitCode::kIoError, errno, "cannot accept a connection");
  }
  return socket;
}

}  // namespace tessera
