// Files written by positioned writes, by several threads or processes each its own bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace tessera {

// Errors are kIoError with path and cause. A write or sync that failed is final: nothing is tried again on
// the same file, since the system may have dropped what it could not write and report success the next time.
class OutputFile {
 public:
  OutputFile() = default;
  // A new file of `size_bytes` that reads as zeros until it is written; one that exists is an error.
  static OutputFile create(const std::filesystem::path& path, int64_t size_bytes);
  // One that exists already.
  static OutputFile open(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  // Writes all of `data`; handles short writes and EINTR. Safe from several threads.
  void write_at(int64_t offset_bytes, std::span<const std::byte> data) const;
  void write_at(int64_t offset_bytes, std::string_view text) const;
  // Has the system begin to write these bytes to the disk, so that sync() finds little left; returns at once.
  void start_writeback(int64_t offset_bytes, int64_t count_bytes) const;
  // Returns when all bytes of the file, whoever wrote them here, are on the disk.
  void sync() const;
  // Reports late errors of network file systems; the destructor closes without.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// A new small file, on the disk when this returns; its name is there when its folder is synced.
void write_synced_file(const std::filesystem::path& path, std::string_view text);

}  // namespace tessera
