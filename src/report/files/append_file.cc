#include "report/files/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tessera {

AppendFile::AppendFile(std::filesystem::path path, int64_t keep_bytes)
    : path_(std::move(path)), fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  const off_t end = fd_ ? lseek(fd_.get(), 0, SEEK_END) : -1;
  if (end >= 0 && (end <= keep_bytes || ftruncate(fd_.get(), keep_bytes) == 0)) return;
  fail_errno(ExitCode::kIoError, errno, fmt::format("cannot write {}", path_.string()));
}

// Returns errno, or 0.
int AppendFile::follow_path() {
  struct stat own = {}, named = {};
  if (fstat(fd_.get(), &own) != 0) return errno;
  const bool is_named = stat(path_.c_str(), &named) == 0;
  if (!is_named && errno != ENOENT && errno != ENOTDIR) return 0;
  if (is_named && own.st_dev == named.st_dev && own.st_ino == named.st_ino) return 0;
  UniqueFd again(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!again) return errno;
  fd_ = std::move(again);
  log_warning("{} was removed or renamed while this run writes to it: it goes on in a new file",
              path_.string());
  return 0;
}

int AppendFile::try_append(std::string_view record) {
  if (const int error = follow_path()) return error;
  const off_t begin = lseek(fd_.get(), 0, SEEK_END);
  while (!record.empty()) {
    const ssize_t written = write(fd_.get(), record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      [[maybe_unused]] const int ignored = ftruncate(fd_.get(), begin);
      return error;
    }
    record.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void AppendFile::append(std::string_view record) {
  const int error = try_append(record);
  if (error != 0 && !std::exchange(warned_, true))
    log_warning("cannot write {}: {}; training continues", path_.string(), std::strerror(error));
}

}  // namespace tessera
