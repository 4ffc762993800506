// The sides of `tessera-bench comm` built into this program (comm_side.h): its own collectives in shared
// memory, and Gloo's all-reduce over TCP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// "shared", and "gloo" if built with Gloo.
std::vector<std::string> comm_sides();

// Forks the other ranks and answers commands on standard input until it ends. Call before the process has
// threads. Each computing rank uses `num_threads`.
void serve_comm_ranks(const std::string& side, int num_ranks, int64_t num_threads);

}  // namespace tessera
