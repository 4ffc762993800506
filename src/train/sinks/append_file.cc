#include "train/sinks/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tessera {

AppendFile::AppendFile(std::filesystem::path path, int64_t keep_bytes) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const int64_t end = fd_ < 0 ? -1 : lseek(fd_, 0, SEEK_END);
  size_bytes_ = std::min(end, keep_bytes);
  if (end >= 0 && (size_bytes_ == end || ftruncate(fd_, size_bytes_) == 0)) return;
  const int error = errno;
  if (fd_ >= 0) close(fd_);
  fail_errno(ExitCode::kIoError, error, fmt::format("cannot write {}", path_.string()));
}

AppendFile::~AppendFile() { close(fd_); }

int AppendFile::try_append(std::string_view record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = pwrite(fd_, record.data() + done, record.size() - done,
                                   static_cast<off_t>(size_bytes_ + static_cast<int64_t>(done)));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // Should this fail, too, the next record overwrites the torn one.
      [[maybe_unused]] const int ignored = ftruncate(fd_, size_bytes_);
      return error;
    }
    done += static_cast<size_t>(written);
  }
  size_bytes_ += std::ssize(record);
  return 0;
}

void AppendFile::append(std::string_view record) {
  const int error = try_append(record);
  if (error != 0 && !std::exchange(warned_, true))
    log_warning("cannot write {}: {}; training continues", path_.string(), std::strerror(error));
}

}  // namespace tessera
