// How many files and sockets this process may have open.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

// Nothing: no limit.
std::optional<int64_t> open_file_limit();

// As many as the system allows: its default for programs that call select() is 1,024, and node 0 of a job has
// a connection to every rank.
void raise_open_file_limit();
// What it was before: for other programs. Async-signal-safe.
void restore_open_file_limit();

}  // namespace tessera
