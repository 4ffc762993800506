// Free space of a file system, and a check before a file is written that there is enough.
#pragma once

#include <cstdint>
#include <filesystem>
#include <system_error>

namespace tessera {

// The free bytes of a file system that does not tell its size, as some in user space do: more than anything
// needs.
inline constexpr int64_t kUnknownSpaceBytes = int64_t{1} << 62;

// std::filesystem::space(), where a file system of no blocks has kUnknownSpaceBytes.
std::filesystem::space_info disk_space(const std::filesystem::path& folder, std::error_code& error);

// Error(kIoError) if the file system of `output`, which need not exist yet, has less than `needed_bytes`
// free.
void check_disk_space(const std::filesystem::path& output, int64_t needed_bytes);

}  // namespace tessera
