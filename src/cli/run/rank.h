// Runs a command as one of several ranks of a job.
#pragma once

#include <functional>
#include <optional>

#include "comm/communicator.h"

namespace tessera {

// The rank as which a launcher has started this process among several. nullopt if it is alone, or if its
// variables were set by hand: they may come from the pod in which a shell was opened.
std::optional<World> launched_world();

// Opens the communicator, runs body(comm) and shuts down in an orderly way. An exception from the body is
// reported to the other ranks, which fail with the same message, and rethrown. Only rank 0 logs anything
// below errors.
void run_as_rank(const World& world, const CommOptions& options,
                 const std::function<void(Communicator& comm)>& body);

}  // namespace tessera
