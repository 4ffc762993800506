#include "io/followed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

constexpr int64_t kMaxLineBytes = int64_t{16} << 20;

}  // namespace

// True if another file has the name now.
bool FollowedFile::open_again() {
  struct stat status = {};
  if (stat(path_.c_str(), &status) != 0) {
    file_.reset();
    if (errno != ENOENT && errno != ENOTDIR) fail_errno(ExitCode::kIoError, errno, path_.string());
    return inode_ != 0 && std::exchange(inode_, 0) != 0;
  }
  if (file_ && status.st_dev == device_ && status.st_ino == inode_) return false;
  const bool is_another = inode_ != 0;
  file_ = UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_ || fstat(file_.get(), &status) != 0) fail_errno(ExitCode::kIoError, errno, path_.string());
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return is_another;
}

// Less if the file ends before `end`.
std::string FollowedFile::read_from(int64_t begin, int64_t end) const {
  std::string text(static_cast<size_t>(end - begin), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        pread(file_.get(), text.data() + done, text.size() - done, begin + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno(ExitCode::kIoError, errno, path_.string());
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

FollowedFile::News FollowedFile::read_news() {
  News news;
  const bool is_another = open_again();
  news.restarted = std::exchange(must_restart_, false) || is_another;
  struct stat status = {};
  if (file_ && fstat(file_.get(), &status) != 0) fail_errno(ExitCode::kIoError, errno, path_.string());
  const int64_t size = status.st_size;
  const auto last_size = static_cast<int64_t>(last_line_.size());
  if (news.restarted || size < read_bytes_ ||
      (last_size > 0 && read_from(read_bytes_ - last_size, read_bytes_) != last_line_)) {
    news.restarted = true;
    read_bytes_ = 0;
    last_line_.clear();
  }
  if (!file_) return news;
  modified_ = static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  const bool is_tail = read_bytes_ == 0 && tail_bytes_ > 0 && size > tail_bytes_;
  if (is_tail) read_bytes_ = size - tail_bytes_;
  while (read_bytes_ < size) {
    const std::string text = read_from(read_bytes_, std::min(size, read_bytes_ + kMaxLineBytes));
    const size_t end = text.rfind('\n');
    if (end == std::string::npos) {
      if (std::ssize(text) < kMaxLineBytes) break;
      fail(ExitCode::kBadData, "{}: expected lines, found one of more than {} bytes", path_.string(),
           kMaxLineBytes);
    }
    for (size_t begin = 0; begin <= end;) {
      const size_t newline = text.find('\n', begin);
      news.lines.push_back(text.substr(begin, newline - begin));
      begin = newline + 1;
    }
    read_bytes_ += static_cast<int64_t>(end) + 1;
    last_line_ = news.lines.back() + "\n";
  }
  if (is_tail && !news.lines.empty()) news.lines.erase(news.lines.begin());  // its beginning was not read
  return news;
}

}  // namespace tessera
