#include "io/output_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/transfer.h"

namespace tessera {

OutputFile OutputFile::create(const std::filesystem::path& path, int64_t size_bytes) {
  OutputFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.fd_ < 0) fail_write(path, "creation", errno);
  int status = 0;
  do status = ::ftruncate(file.fd_, size_bytes);
  while (status != 0 && errno == EINTR);
  if (status != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    fail_write(path, "setting the size", error);
  }
  return file;
}

OutputFile OutputFile::open(const std::filesystem::path& path) {
  OutputFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file.fd_ < 0) fail_write(path, "opening for writing", errno);
  return file;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void OutputFile::write_at(int64_t offset_bytes, std::span<const std::byte> data) const {
  TESSERA_CHECK(fd_ >= 0 && offset_bytes >= 0, "{}: offset {}", path_.native(), offset_bytes);
  const size_t done = transfer_fully(data.size(), [&](size_t done_bytes) {
    return ::pwrite(fd_, data.data() + done_bytes, std::min(data.size() - done_bytes, kMaxTransferBytes),
                    offset_bytes + static_cast<int64_t>(done_bytes));
  });
  if (done < data.size()) fail_write(path_, "write", errno != 0 ? errno : EIO);
}

void OutputFile::write_at(int64_t offset_bytes, std::string_view text) const {
  write_at(offset_bytes, std::as_bytes(std::span(text)));
}

std::pair<int64_t, int64_t> OutputFile::share_at(int64_t offset_bytes, const FileBytes& source) const {
  if ((source.offset_bytes - offset_bytes) % kSharedPageBytes != 0) return {0, 0};
  const int64_t begin = round_up(offset_bytes, kSharedPageBytes) - offset_bytes;
  const int64_t end = (offset_bytes + source.size_bytes) / kSharedPageBytes * kSharedPageBytes - offset_bytes;
  if (begin >= end) return {0, 0};
  file_clone_range range = {.src_fd = source.fd,
                            .src_offset = static_cast<uint64_t>(source.offset_bytes + begin),
                            .src_length = static_cast<uint64_t>(end - begin),
                            .dest_offset = static_cast<uint64_t>(offset_bytes + begin)};
  if (::ioctl(fd_, FICLONERANGE, &range) != 0) return {0, 0};
  return {begin, end};
}

// If unsupported or failing, sync() does the work and reports the error.
void OutputFile::start_writeback(int64_t offset_bytes, int64_t count_bytes) const {
  ::sync_file_range(fd_, offset_bytes, count_bytes, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::sync() const {
  if (::fsync(fd_) != 0) fail_write(path_, "fsync", errno);
}

void OutputFile::close() {
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail_write(path_, "close", errno);
}

void write_synced_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file = OutputFile::create(path, 0);
  file.write_at(0, text);
  file.sync();
  file.close();
}

}  // namespace tessera
