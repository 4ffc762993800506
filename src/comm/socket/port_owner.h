// Finds the process listening on a TCP port of this machine, for the message that the port is taken.
#pragma once

#include <string>

namespace tessera {

// "process 4711 (python3)"; "" if it cannot be determined: another user's process, or another network
// namespace.
std::string describe_port_owner(int port);

}  // namespace tessera
