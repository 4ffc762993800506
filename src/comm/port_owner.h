// Who listens on a TCP port of this machine, for the message that it is taken.
#pragma once

#include <string>

namespace tessera {

// "process 4711 (python3)"; "" when that cannot be seen: another user's process, or another network
// namespace.
std::string describe_port_owner(int port);

}  // namespace tessera
