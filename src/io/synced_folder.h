// Folders that survive a power loss.
#pragma once

#include <filesystem>

namespace tessera {

// create_folder(), and every folder it creates survives a power loss. Error(kIoError) with path and cause.
void create_synced_folder(const std::filesystem::path& path);

}  // namespace tessera
