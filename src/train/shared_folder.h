// Whether the nodes of a job see one folder.
#pragma once

#include <filesystem>

#include "comm/communicator.h"

namespace tessera {

// Collective: rank 0 makes `folder` if need be and puts a file into it for a moment; true when a rank of
// every node finds it there. Error(kIoError) on rank 0.
bool is_shared_by_nodes(Communicator& comm, const std::filesystem::path& folder);

}  // namespace tessera
