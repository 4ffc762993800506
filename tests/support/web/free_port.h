// For tests: a port for a server that is started later.
#pragma once

#include <random>

#include "base/error.h"
#include "comm/socket/tcp_socket.h"

namespace tessera {

// Nobody listens on it. It lies below the ports that the kernel gives to connections (from 32768), which
// would take it before the server does, and is drawn, because other tests run at the same time.
inline int free_port() {
  static std::random_device random;
  for (;;) {
    const int port = std::uniform_int_distribution(20'000, 32'767)(random);
    try {
      listen_on("127.0.0.1", port);
      return port;
    } catch (const Error&) {  // in use
    }
  }
}

}  // namespace tessera
