// Files written with positioned writes, by several threads or processes that each write their own bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace tessera {

// The smallest unit that file systems share: the usual block size of XFS and btrfs.
inline constexpr int64_t kSharedPageBytes = 4096;

// Bytes of a file that is open in this process.
struct FileBytes {
  int fd = -1;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

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
  // Makes this file share the disk space of `source` from `offset_bytes` on (a reflink: nothing is copied
  // until one of the two files changes), where whole pages of both coincide. Returns the range of the
  // source's bytes, [first, second), that it now has: empty where file systems cannot share, or if that
  // failed; the caller writes the rest. Thread-safe.
  std::pair<int64_t, int64_t> share_at(int64_t offset_bytes, const FileBytes& source) const;
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
