#include "io/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "io/page_cache.h"

namespace tessera {
namespace {

// Alignment of offsets, sizes and memory that every disk and file system accepts.
constexpr int64_t kAlignment = 4096;
// A disk fills a huge page with one request of one segment; 256 small pages are 256 segments, more than most
// disks take at once.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Below this size a buffered read with readahead is faster.
constexpr int64_t kMinDirectBytes = int64_t{64} << 10;

}  // namespace

DirectInputFile::DirectInputFile(const std::filesystem::path& path) : file_(InputFile::open(path)) {
  if (file_.size_bytes() < kMinDirectBytes) return;
  direct_fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  // If the system does not say what is cached, buffered reads are the safe choice.
  is_direct_ = direct_fd_ >= 0 && cached_share(direct_fd_, file_.size_bytes()).value_or(1) <= 0.5;
}

DirectInputFile::~DirectInputFile() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
}

void DirectInputFile::announce(int64_t offset_bytes, int64_t count_bytes) const {
  if (!is_direct_ || count_bytes < kMinDirectBytes) file_.announce(offset_bytes, count_bytes);
}

// False if a direct read is not possible: the caller falls back to a buffered read, which works or reports
// the error.
bool DirectInputFile::read_direct(int64_t begin, int64_t count_bytes, std::byte* destination,
                                  int64_t needed_bytes) const {
  int64_t done = 0;
  while (done < needed_bytes) {
    const ssize_t got =
        ::pread(direct_fd_, destination + done, static_cast<size_t>(count_bytes - done), begin + done);
    if (got < 0 && errno == EINTR) continue;
    // A read that does not end on a block boundary must have reached the end of the file.
    if (got <= 0 || (got % kAlignment != 0 && done + got < needed_bytes)) return false;
    done += got;
  }
  return true;
}

std::span<std::byte> DirectInputFile::read_at(int64_t offset_bytes, int64_t count_bytes,
                                              PageBuffer* buffer) const {
  const int64_t begin = offset_bytes / kAlignment * kAlignment;
  const int64_t skipped = offset_bytes - begin;
  const int64_t aligned_bytes = round_up(skipped + count_bytes, kAlignment);
  if (buffer->size_bytes() < aligned_bytes) *buffer = PageBuffer(round_up(aligned_bytes, kHugePageBytes));
  const auto count = static_cast<size_t>(count_bytes);
  if (is_direct_ && count_bytes >= kMinDirectBytes) {
    if (read_direct(begin, aligned_bytes, buffer->data(), skipped + count_bytes))
      return {buffer->data() + skipped, count};
    is_direct_ = false;
  }
  const std::span<std::byte> bytes(buffer->data(), count);
  file_.read_at(offset_bytes, bytes);
  return bytes;
}

}  // namespace tessera
