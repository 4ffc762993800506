#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/absolute_path.h"
#include "io/page_cache.h"
#include "io/transfer.h"

namespace tessera {
namespace {

// Readahead puts data into large folios of the page cache, POSIX_FADV_WILLNEED into single pages, which cost
// more to handle: with a system readahead of 8 MiB, 2 threads read 2.4 GB/s without announcing and 1.8 with
// it. The usual 128 KiB is too little for a disk that needs many requests in flight.
constexpr int64_t kFarAhead = int64_t{4} << 20;
// A smaller file is read before an announcement takes effect.
constexpr int64_t kMinAnnouncedFileBytes = int64_t{1} << 20;

// The system's message for a failed write; for a full disk also where to look, since a disk with free bytes
// may be out of inodes.
std::string write_error_text(int errno_value) {
  std::string text = std::generic_category().message(errno_value);
  if (errno_value == ENOSPC) text += " (free some: df -h shows bytes, df -i files)";
  if (errno_value == EFBIG) text += " (ulimit -f, or what the file system can hold)";
  if (errno_value == EDQUOT) text += " (free some, or have the quota raised)";
  return text;
}

[[noreturn]] void fail_creation(const std::filesystem::path& path, int errno_value) {
  fail(ExitCode::kIoError, "{}: cannot create: {}", path.native(), write_error_text(errno_value));
}

FileStamp stamp_of(const struct stat& status) {
  return {status.st_size, int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// Takes the lock that tells remove_abandoned_files that the owner is alive. False if the file was taken for
// abandoned before that and is gone.
bool lock_file(int fd) {
  int status = 0;
  do status = ::flock(fd, LOCK_EX);
  while (status != 0 && errno == EINTR);
  if (status != 0) return true;  // no locks here, so files are not removed either
  struct stat file = {};
  return ::fstat(fd, &file) != 0 || file.st_nlink > 0;
}

// Whether the lock of the file at `path`, open as `fd`, is free. Takes the lock, so that a process that has
// just created the file waits and then sees that it is gone.
bool is_abandoned(int fd, const std::filesystem::path& path) {
  struct stat opened = {};
  struct stat named = {};
  if (::fstat(fd, &opened) != 0 || !S_ISREG(opened.st_mode) || ::flock(fd, LOCK_EX | LOCK_NB) != 0)
    return false;
  // Its owner may have renamed it since.
  return ::lstat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

// ".NAME.tmp-PID-COUNTER" with a NAME that ends in `suffix`.
bool is_temporary_name(std::string_view name, std::string_view suffix) {
  const size_t at = name.rfind(".tmp-");
  if (at == std::string_view::npos || !name.starts_with('.') || !name.substr(0, at).ends_with(suffix))
    return false;
  const std::string_view numbers = name.substr(at + 5);
  const size_t dash = numbers.find('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dash != std::string_view::npos && is_number(numbers.substr(0, dash)) &&
         is_number(numbers.substr(dash + 1));
}

}  // namespace

InputFile InputFile::open(const std::filesystem::path& path) {
  InputFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a pipe must fail below, not wait for a writer.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE)
      fail(ExitCode::kIoError, "{}: cannot open: too many open files (raise `ulimit -n`)", path.native());
    fail_errno(ExitCode::kNoInput, error, fmt::format("{}: cannot open", path.native()));
  }
  struct stat status = {};
  if (::fstat(file.fd_, &status) != 0)
    fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot stat", path.native()));
  if (S_ISDIR(status.st_mode)) fail(ExitCode::kNoInput, "{}: is a folder, expected a file", path.native());
  if (!S_ISREG(status.st_mode))
    fail(ExitCode::kNoInput, "{}: is not a regular file (a pipe or device cannot be read in place)",
         path.native());
  file.stamp_ = stamp_of(status);
  file.announces_ = file.size_bytes() >= kMinAnnouncedFileBytes && read_ahead_bytes(file.fd_) < kFarAhead;
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      stamp_(other.stamp_),
      announces_(other.announces_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(stamp_, other.stamp_);
  std::swap(announces_, other.announces_);
  return *this;
}

void InputFile::read_at(int64_t offset_bytes, std::span<std::byte> destination) const {
  TESSERA_CHECK(fd_ >= 0 && offset_bytes >= 0, "offset {}", offset_bytes);
  const size_t done = transfer_fully(destination.size(), [&](size_t done_bytes) {
    return ::pread(fd_, destination.data() + done_bytes,
                   std::min(destination.size() - done_bytes, kMaxTransferBytes),
                   offset_bytes + static_cast<int64_t>(done_bytes));
  });
  if (done == destination.size()) return;
  const int64_t at = offset_bytes + static_cast<int64_t>(done);
  if (errno != 0)
    fail_errno(ExitCode::kIoError, errno, fmt::format("{}: read failed at byte {}", path_.native(), at));
  fail(ExitCode::kBadData, "{}: ends early: expected {} at offset {}, found the end of the file at {}{}",
       path_.native(), count_of(std::ssize(destination), "byte"), offset_bytes, at,
       at < size_bytes()
           ? fmt::format(" (it had {} when opened: truncated since then)", count_of(size_bytes(), "byte"))
           : "");
}

// Only advice, so errors are ignored.
void InputFile::announce(int64_t offset_bytes, int64_t count_bytes) const {
  if (announces_) ::posix_fadvise(fd_, offset_bytes, count_bytes, POSIX_FADV_WILLNEED);
}

void InputFile::check_unchanged() const {
  struct stat status = {};
  if (::fstat(fd_, &status) != 0)
    fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot stat", path_.native()));
  if (stamp_of(status) != stamp_)
    fail(ExitCode::kBadData, "{}: changed while it was being read: {} when opened, now {}{}", path_.native(),
         count_of(size_bytes(), "byte"), count_of(status.st_size, "byte"),
         status.st_size == size_bytes() ? ", rewritten in place" : "");
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  const InputFile file = InputFile::open(path);
  if (file.size_bytes() > max_bytes)
    fail(ExitCode::kBadData, "{}: file too large: expected at most {}, found {}", path.native(),
         format_bytes(max_bytes), format_bytes(file.size_bytes()));
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  static std::atomic<int64_t> counter = 0;
  refuse_special_file(path_);
  // A process id may be reused after a crash that left its file behind: take the next name.
  do {
    temporary_path_ =
        folder_of(path_) / fmt::format(".{}.tmp-{}-{}", path_.filename().native(), ::getpid(), ++counter);
    fd_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 && !lock_file(fd_)) {
      ::close(std::exchange(fd_, -1));
      errno = EEXIST;
    }
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_creation(path_, errno);
}

LockFile::LockFile(std::filesystem::path path, const std::function<void()>& waiting)
    : path_(std::move(path)) {
  constexpr std::chrono::milliseconds kPoll(20);
  while (true) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_creation(path_, errno);
    const int status = ::flock(fd_, LOCK_EX | LOCK_NB);
    const int error = status == 0 ? 0 : errno;
    if (error != 0 && error != EWOULDBLOCK && error != EINTR) return;  // no locks here
    struct stat opened = {};
    struct stat named = {};
    const bool is_ours = error == 0 && ::fstat(fd_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
                         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    if (is_ours) return;
    ::close(std::exchange(fd_, -1));
    if (error == 0) continue;  // its last holder has removed it in the meantime
    if (waiting) waiting();
    std::this_thread::sleep_for(kPoll);
  }
}

// Removed while locked: a waiter then finds a different file or none at the path and starts over.
LockFile::~LockFile() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  temporary_path_.clear();
}

void AtomicFile::fail_and_discard(const char* action, int error) {
  discard();
  fail_write(path_, action, error);
}

void AtomicFile::write(std::span<const std::byte> data) {
  TESSERA_CHECK(fd_ >= 0, "write to {} after commit or failure", path_.native());
  const size_t done = transfer_fully(data.size(), [&](size_t done_bytes) {
    return ::write(fd_, data.data() + done_bytes, std::min(data.size() - done_bytes, kMaxTransferBytes));
  });
  if (done < data.size()) fail_and_discard("write", errno != 0 ? errno : EIO);
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  TESSERA_CHECK(fd_ >= 0, "commit of {} after commit or failure", path_.native());
  if (::fsync(fd_) != 0) fail_and_discard("fsync", errno);
  // close() reports late errors, but would release the lock before the rename: a duplicate keeps it.
  const int lock_holder = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (lock_holder < 0) fail_and_discard("dup", errno);
  const int closed = ::close(std::exchange(fd_, lock_holder));
  if (closed != 0) fail_and_discard("close", errno);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) fail_and_discard("rename", errno);
  temporary_path_.clear();
  discard();
  fsync_folder(folder_of(path_));
}

int64_t remove_abandoned_files(const std::filesystem::path& folder, std::string_view suffix) {
  int64_t num_removed = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!is_temporary_name(entry.path().filename().native(), suffix)) continue;
    const int fd = ::open(entry.path().c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (is_abandoned(fd, entry.path()) && ::unlink(entry.path().c_str()) == 0) ++num_removed;
    ::close(fd);
  }
  return num_removed;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void refuse_special_file(const std::filesystem::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return;
  fail(ExitCode::kIoError, "{}: is a device, pipe or socket, which a file would replace; choose another name",
       path.native());
}

void create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (error) {
    fail(ExitCode::kIoError, "{}: cannot create the folder: {}", path.native(),
         write_error_text(error.value()));
  }
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path nearest_existing(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::path nearest = absolute_path(folder).lexically_normal();
  while (!std::filesystem::exists(nearest, ignored) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  return nearest;
}

void fail_write(const std::filesystem::path& path, const char* action, int errno_value) {
  fail(ExitCode::kIoError, "{}: {} failed: {}", path.native(), action, write_error_text(errno_value));
}

void fsync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int result = fd < 0 ? -1 : ::fsync(fd);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  // Some network file systems cannot sync folders and return EINVAL.
  if (result != 0 && error != EINVAL)
    fail_errno(ExitCode::kIoError, error, fmt::format("{}: cannot sync the folder", folder.native()));
}

}  // namespace tessera
