// TCP sockets that never block.
#pragma once

#include <sys/socket.h>

#include <string>

#include "comm/local_socket.h"

namespace tessera {

// A numeric IPv4 or IPv6 address and a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};
// Error(kBadConfig) when `address` is not numeric.
SocketAddress parse_address(const std::string& address, int port);

// Listens; port 0 takes any free one. Error(kIoError) with the address.
UniqueFd listen_on(const std::string& address, int port);
int local_port(const UniqueFd& socket);

// Begins to connect; the socket becomes writable when that is decided. Not open when refused at once.
UniqueFd begin_connect(const SocketAddress& address);
// The errno of a connection attempt that was decided; 0 = connected.
int connect_result(const UniqueFd& socket);

// The next connection that waits; not open when there is none. Error(kIoError) when the system has no room
// for it.
UniqueFd accept_from(const UniqueFd& listener);

}  // namespace tessera
