// Whether files of a folder can share disk space (OutputFile::share_at()).
#pragma once

#include <filesystem>

namespace tessera {

// Tries it with two files that have no name. False also if they cannot be made.
bool can_share_space(const std::filesystem::path& folder);

}  // namespace tessera
