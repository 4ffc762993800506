// Large files that are read once: past the system's cache where it does not hold them, which saves the copy
// and leaves the cache to others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/memory.h"
#include "formats/file.h"

namespace tessera {

class DirectInputFile {
 public:
  // Errors as of InputFile. Whether the cache has most of the file is looked at once.
  explicit DirectInputFile(const std::filesystem::path& path);
  ~DirectInputFile();
  DirectInputFile(const DirectInputFile&) = delete;
  DirectInputFile& operator=(const DirectInputFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  // The bytes, somewhere in `buffer`, which is replaced by a larger one where it must be. Safe from several
  // threads, each with a buffer of its own.
  std::span<std::byte> read_at(int64_t offset_bytes, int64_t count_bytes, PageBuffer* buffer) const;
  // Has the system begin to read, where reads go through its cache; returns at once.
  void announce(int64_t offset_bytes, int64_t count_bytes) const;
  // Whether large reads go past the cache.
  bool is_direct() const { return is_direct_; }

 private:
  bool read_direct(int64_t begin, int64_t count_bytes, std::byte* destination, int64_t needed_bytes) const;

  InputFile file_;
  int direct_fd_ = -1;
  mutable std::atomic<bool> is_direct_ = false;
};

}  // namespace tessera
