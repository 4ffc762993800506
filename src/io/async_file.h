// A scratch file between memory and a disk, with many reads and writes in flight at once: io_uring and direct
// I/O where the system allows them, otherwise threads and the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace tessera {

// Offsets, sizes and addresses of transfers are multiples of this: what every disk and file system accepts
// for direct I/O.
inline constexpr int64_t kDirectAlignment = 4096;

struct AsyncFileSettings {
  int64_t queue_depth = 32;                // blocks in flight
  int64_t block_bytes = int64_t{1} << 20;  // longer transfers are cut into blocks of this size
  bool use_io_uring = true;                // false: threads, even where io_uring works
};

struct AsyncFileStatistics {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  double busy_seconds = 0;    // with at least one transfer under way
  double waited_seconds = 0;  // inside wait() and wait_all()

  AsyncFileStatistics& operator+=(const AsyncFileStatistics& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    busy_seconds += other.busy_seconds;
    waited_seconds += other.waited_seconds;
    return *this;
  }
};

// The file has no name once it is open, so its space is freed however the process ends, and two runs with the
// same path do not collide. Its space is allocated at the start; it reads as zeros until written.
//
// Transfers run in the background in about the order in which they were started; ones that overlap, unless
// both read, must be separated by wait(). Memory of a transfer belongs to it until wait() has returned or the
// AsyncFile is destroyed. Not thread-safe: one thread owns the object. Transfers allocate nothing.
//
// Errors are kIoError with path, offset and cause, thrown by the next call after the one that failed; they
// are final, and every later call throws the same.
class AsyncFile {
 public:
  using Ticket = int64_t;

  // Replaces a file at `path`. Error(kIoError) if it cannot be created or the disk has too little room.
  AsyncFile(const std::filesystem::path& path, int64_t size_bytes, const AsyncFileSettings& settings = {});
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  // Starts a transfer; waits only if very many (kMaxTransfers) are under way.
  Ticket read(int64_t offset_bytes, std::span<std::byte> to);
  // Reads into memory that an earlier transfer still uses: this read, and all transfers started after it,
  // begin when `earlier` has ended.
  Ticket read_after(Ticket earlier, int64_t offset_bytes, std::span<std::byte> to);
  Ticket write(int64_t offset_bytes, std::span<const std::byte> from);
  // Lets the transfer go first unless it overlaps earlier ones; returns when it has ended, if so at once.
  void wait(Ticket ticket);
  void wait_all();

  // Gives these bytes, whole multiples of kDirectAlignment, back to the file system: they read as zeros from
  // now on, and transfers of them may not be under way. Where the file system cannot do that they keep their
  // space.
  void discard(int64_t offset_bytes, int64_t size_bytes);

  const std::filesystem::path& path() const;
  int64_t size_bytes() const;
  int fd() const;          // for copies inside the kernel; transfers may be under way
  bool is_direct() const;  // transfers bypass the page cache
  bool uses_io_uring() const;
  AsyncFileStatistics statistics() const;

  static constexpr int64_t kMaxTransfers = 4096;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
