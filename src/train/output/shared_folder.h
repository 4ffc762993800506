// Tests whether the nodes of a job see the same folder.
#pragma once

#include <filesystem>

#include "comm/communicator.h"

namespace tessera {

// Collective: rank 0 creates `folder` if necessary and puts a file into it for a moment; true if a rank of
// every node finds the file. Error(kIoError) on rank 0.
bool is_shared_by_nodes(Communicator& comm, const std::filesystem::path& folder);

}  // namespace tessera
