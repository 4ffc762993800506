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

// Detects that a file was rewritten.
struct FileStamp {
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// A file opened for reading. Errors: kNoInput if it cannot be opened (or is a folder), kIoError if a read
// fails, kBadData if it ends early; each names the path.
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
  // Fills all of `destination` from `offset_bytes`; handles short reads and EINTR. Thread-safe.
  void read_at(int64_t offset_bytes, std::span<std::byte> destination) const;
  // Asks the kernel to start reading these bytes, unless its own read-ahead already goes far enough; returns
  // at once.
  void announce(int64_t offset_bytes, int64_t count_bytes) const;
  // kBadData if size or modification time have changed since opening.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  FileStamp stamp_;
  bool announces_ = false;
};

// Returns the whole file; kBadData if it is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);

// A file that appears under its name only once it is complete and on disk: it is written to a hidden
// temporary file in the same folder, fsynced and renamed, then the folder is fsynced. Without commit() the
// destructor removes the temporary file. Errors are kIoError with path and cause, also for a path that
// refuse_special_file() refuses; a failed write or fsync is never retried.
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

// An exclusive lock between processes (flock) on a separate file at `path`, held until destruction or until
// the process ends, however it ends. Blocks while another process holds it. The last holder removes the file.
// On file systems without locks it does not wait. Error(kIoError) if the file cannot be created.
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

// Removes AtomicFile's temporary files that killed processes left in `folder`, for targets whose names end
// with `suffix`. A process holds a lock (flock) on its file until the file is renamed or gone, so files of
// live processes stay, including those on other machines and in other containers; on a file system without
// locks all stay. Returns the number of files removed; files that cannot be removed are left.
int64_t remove_abandoned_files(const std::filesystem::path& folder, std::string_view suffix);

void write_text_file(const std::filesystem::path& path, std::string_view text);

// Error(kIoError) if the path leads to a device, pipe or socket, such as /dev/null: renaming a finished file
// to it would replace it for all programs.
void refuse_special_file(const std::filesystem::path& path);

// Creates the folder and its parents; kIoError with path and cause.
void create_folder(const std::filesystem::path& path);

// Makes the names in the folder survive a power loss; kIoError with path and cause. If a file system reports
// that it cannot fsync folders, that is not an error.
void fsync_folder(const std::filesystem::path& folder);

// The folder containing `path`; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

// The folder itself, or the nearest one above it that exists.
std::filesystem::path nearest_existing(const std::filesystem::path& folder);

// Throws Error(kIoError) for a failed `action` ("write", "fsync"), with advice if the disk is full.
[[noreturn]] void fail_write(const std::filesystem::path& path, const char* action, int errno_value);

}  // namespace tessera
