// How many files and sockets this process may have open.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

// nullopt: no limit.
std::optional<int64_t> open_file_limit();

// Raises the limit to the maximum the system allows: the default of 1,024 exists for programs that call
// select(), and node 0 of a job has a connection to every rank.
void raise_open_file_limit();
// Restores the original limit, for other programs. Async-signal-safe.
void restore_open_file_limit();

}  // namespace tessera
