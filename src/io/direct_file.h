// Reads large files once, bypassing the page cache unless it already holds them. That saves a copy and leaves
// the cache to others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/memory.h"
#include "io/file.h"

namespace tessera {

class DirectInputFile {
 public:
  // Errors as InputFile. Checks once, here, whether the cache holds most of the file.
  explicit DirectInputFile(const std::filesystem::path& path);
  ~DirectInputFile();
  DirectInputFile(const DirectInputFile&) = delete;
  DirectInputFile& operator=(const DirectInputFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  // Returns the bytes as a span inside `buffer`, which is replaced by a larger one if needed. Thread-safe if
  // each thread has its own buffer.
  std::span<std::byte> read_at(int64_t offset_bytes, int64_t count_bytes, PageBuffer* buffer) const;
  // Starts readahead if reads go through the page cache; returns at once.
  void announce(int64_t offset_bytes, int64_t count_bytes) const;
  // Whether large reads bypass the page cache.
  bool is_direct() const { return is_direct_; }

 private:
  bool read_direct(int64_t begin, int64_t count_bytes, std::byte* destination, int64_t needed_bytes) const;

  InputFile file_;
  int direct_fd_ = -1;
  mutable std::atomic<bool> is_direct_ = false;
};

}  // namespace tessera
