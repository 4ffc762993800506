// Paths and the current folder, which may have been removed; and errors of std::filesystem.
#pragma once

#include <filesystem>

#include "base/error.h"

namespace tessera {

// Error(kNoInput) if the path is relative and the current folder no longer exists.
std::filesystem::path absolute_path(const std::filesystem::path& path);

// kNoInput if the current folder no longer exists, otherwise kIoError, with path and cause.
Error error_from(const std::filesystem::filesystem_error& error);

}  // namespace tessera
