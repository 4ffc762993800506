// The share of a file that is in the page cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

// The fraction of an open file's pages that is in the page cache; nullopt if the system does not say. 0 for
// an empty file.
std::optional<double> cached_share(int fd, int64_t size_bytes);

// Syncs the file and evicts its pages. Error(kNoInput) if it cannot be opened, Error(kBadConfig) if more than
// 1 % stays cached.
void drop_from_page_cache(const std::filesystem::path& path);

// The kernel's readahead on the file's device, in bytes; 0 if unknown.
int64_t read_ahead_bytes(int fd);

}  // namespace tessera
