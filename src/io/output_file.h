// Files written with positioned writes, by several threads or processes that each write their own bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace tessera {

// Errors are kIoError with path and cause. A failed write or sync is final and never retried on the same
// file: the kernel may have dropped the dirty pages and report success the next time.
class OutputFile {
 public:
  OutputFile() = default;
  // Creates a file of `size_bytes` that reads as zeros until written; it must not exist yet.
  static OutputFile create(const std::filesystem::path& path, int64_t size_bytes);
  // Opens an existing file.
  static OutputFile open(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  // Writes all of `data`; handles short writes and EINTR. Thread-safe.
  void write_at(int64_t offset_bytes, std::span<const std::byte> data) const;
  void write_at(int64_t offset_bytes, std::string_view text) const;
  // Starts writing these bytes back to disk, so that sync() has little left to do; returns at once.
  void start_writeback(int64_t offset_bytes, int64_t count_bytes) const;
  // Returns once all bytes of the file written on this machine, by any process, are on disk.
  void sync() const;
  // Closes and reports late errors of network file systems, which the destructor ignores.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Creates a small file whose content is on disk on return; its name is durable once its folder is synced.
void write_synced_file(const std::filesystem::path& path, std::string_view text);

}  // namespace tessera
