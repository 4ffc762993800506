#pragma once

#include <string>

namespace tessera {

// This machine's name as shown in messages; "localhost" if the system does not provide one.
std::string host_name();

}  // namespace tessera
