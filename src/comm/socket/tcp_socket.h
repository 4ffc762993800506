// Nonblocking TCP sockets.
#pragma once

#include <sys/socket.h>

#include <string>

#include "comm/socket/local_socket.h"

namespace tessera {

// A numeric IPv4 or IPv6 address and a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};
// Error(kBadConfig) if `address` is not numeric.
SocketAddress parse_address(const std::string& address, int port);

// Listens; port 0 picks any free one. Error(kIoError) names the address.
UniqueFd listen_on(const std::string& address, int port);
int local_port(const UniqueFd& socket);

// Begins to connect; the socket becomes writable once that has succeeded or failed. Not open if refused at
// once.
UniqueFd begin_connect(const SocketAddress& address);
// The errno of a finished connection attempt; 0 = connected.
int connect_result(const UniqueFd& socket);

// The next pending connection; not open if there is none. Error(kIoError) if the system lacks resources for
// it.
UniqueFd accept_from(const UniqueFd& listener);

}  // namespace tessera
