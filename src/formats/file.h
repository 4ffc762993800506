// Files read by explicit positioned reads and written atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Linux transfers at most 0x7ffff000 bytes per call; smaller pieces keep a signal's delay short.
inline constexpr size_t kMaxTransferBytes = size_t{1} << 26;

// What tells that a file was rewritten.
struct FileStamp {
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// A file opened for reading. Errors: kNoInput when it cannot be opened (a folder included), kIoError when a
// read fails, kBadData when it ends early; each names the path.
class InputFile {
 public:
  InputFile() = default;
  static InputFile open(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const { return stamp_.size_bytes; }  // when opened
  const FileStamp& stamp() const { return stamp_; }         // when opened
  // Fills all of `destination` from `offset_bytes`; handles short reads and EINTR. Safe from several threads.
  void read_at(int64_t offset_bytes, std::span<std::byte> destination) const;
  // Tells the system to start reading these bytes, unless it reads far ahead by itself; returns at once.
  void announce(int64_t offset_bytes, int64_t count_bytes) const;
  // kBadData when size or modification time differ from those at opening.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  FileStamp stamp_;
  bool announces_ = false;
};

// The whole file; refuses files above max_bytes (kBadData).
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);

// A file that appears under its name only when it is complete and on disk: written as a hidden temporary file
// in the same folder, fsynced, renamed, the folder fsynced. Without commit() the destructor removes the
// temporary file. Errors are kIoError with path and cause; a failed write or fsync is never retried.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text);
  void commit();

 private:
  void discard();
  [[noreturn]] void fail_and_discard(const char* action, int error);

  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  int fd_ = -1;
};

// An exclusive lock between processes (flock) on a file of its own at `path`, held until destruction or the
// end of the process, however it ends. Waits as long as another one holds it. The last holder removes the
// file. Where a file system has no locks nobody waits. Error(kIoError) when the file cannot be made.
class LockFile {
 public:
  // `waiting` is called about every 20 ms while another process holds the lock; it may throw.
  explicit LockFile(std::filesystem::path path, const std::function<void()>& waiting = {});
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Removes temporary files of AtomicFile in `folder` that a process left behind which was killed, for targets
// whose names end with `suffix`. A process holds a lock (flock) on its file until the file has its name or is
// gone, so that those of living processes stay, on other machines and in other containers, too; without locks
// on that file system all stay. Returns how many it removed; what cannot be removed is left.
int64_t remove_abandoned_files(const std::filesystem::path& folder, std::string_view suffix);

void write_text_file(const std::filesystem::path& path, std::string_view text);

// Creates the folder and its parents; kIoError with path and cause.
void create_folder(const std::filesystem::path& path);

// Makes the names in the folder survive a loss of power; kIoError with path and cause. File systems that
// cannot do so for folders say so and are believed.
void fsync_folder(const std::filesystem::path& folder);

// The folder that holds `path`; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

// Error(kIoError) about a failed `action` ("write", "fsync"), with what to do when space is what is missing.
[[noreturn]] void fail_write(const std::filesystem::path& path, const char* action, int errno_value);

}  // namespace tessera
