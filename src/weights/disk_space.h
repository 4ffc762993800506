// Finds out before a large file is written that the disk cannot hold it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera {

// Error(kIoError) if the file system of `output`, which need not exist yet, has less than `needed_bytes`
// free.
void check_disk_space(const std::filesystem::path& output, int64_t needed_bytes);

}  // namespace tessera
