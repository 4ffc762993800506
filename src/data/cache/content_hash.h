// Hashes of large data, built from hashes of fixed-size chunks so that threads can share the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/thread_pool.h"

namespace tessera {

// XXH3, 128 bits.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  // 32 digits
};

inline constexpr int64_t kHashChunkBytes = int64_t{4} << 20;

Hash128 hash_bytes(std::span<const std::byte> bytes);
Hash128 hash_text(std::string_view text);
// The hash of a list of hashes, in order.
Hash128 hash_hashes(std::span<const Hash128> hashes);

// Part of a file to hash.
struct FileRange {
  std::filesystem::path file;
  int64_t begin_bytes;
  int64_t end_bytes;
};

// One hash per range: hash_hashes() over the range's chunks of kHashChunkBytes. At most one file per thread
// is open at a time. Errors as InputFile.
std::vector<Hash128> hash_file_ranges(std::span<const FileRange> ranges, ThreadPool& pool);

}  // namespace tessera
