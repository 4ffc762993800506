// Folders that are there after a loss of power, too.
#pragma once

#include <filesystem>

namespace tessera {

// create_folder(), and the names of the folders that were not there survive a loss of power. Error(kIoError)
// with path and cause.
void create_synced_folder(const std::filesystem::path& path);

}  // namespace tessera
