#pragma once

#include <string>

namespace tessera {

// This machine's name as messages show it, "localhost" when the system does not tell.
std::string host_name();

}  // namespace tessera
