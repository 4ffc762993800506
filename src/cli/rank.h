// Commands as one of several ranks of a job.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace tessera {

// Opens the communicator, runs body(comm) and ends in order. What the body throws is told to the other ranks,
// whose part in it ends with the same message, and thrown on. Only rank 0 logs below errors.
void run_as_rank(const World& world, const CommOptions& options,
                 const std::function<void(Communicator& comm)>& body);

}  // namespace tessera
