// What the system's page cache holds of a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

// Of the pages of an open file, the share in the cache; nothing where the system does not tell. An empty file
// has none.
std::optional<double> cached_share(int fd, int64_t size_bytes);

// Has the system write the file and forget its pages. Error(kNoInput) when it cannot be opened,
// Error(kBadConfig) when more than 1 % stays.
void drop_from_page_cache(const std::filesystem::path& path);

// How far the system reads ahead of a program on the file's device, in bytes; 0 where it does not tell.
int64_t read_ahead_bytes(int fd);

}  // namespace tessera
