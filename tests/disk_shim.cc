#include "disk_shim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Watch {
  std::string root;
  std::map<uint64_t, int64_t> nodes;  // by inode number
  int64_t num_nodes = 0;
  std::vector<DiskNode> before;
  std::vector<DiskOp> ops;

  int64_t add(uint64_t inode) { return nodes[inode] = num_nodes++; }
};

struct Faults {
  std::string root;
  std::function<DiskFault(const DiskCall&)> decide;
};

std::recursive_mutex mutex;  // guards both; calls below the folders are serialized
std::unique_ptr<Watch> watch;
std::unique_ptr<Faults> faults;
std::atomic<bool> is_active = false;  // `watch` or `faults` is set

bool is_below(const std::string& path, const std::string& root) {
  return path == root || (path.starts_with(root) && path[root.size()] == '/');
}

std::string path_of_fd(int fd) {
  char path[PATH_MAX] = {};
  const ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof(path) - 1);
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

std::string absolute(int folder_fd, const char* path) {
  fs::path result = path;
  if (result.is_relative()) {
    result = (folder_fd == AT_FDCWD ? fs::current_path() : fs::path(path_of_fd(folder_fd))) / result;
  }
  std::string text = result.lexically_normal().native();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::optional<uint64_t> inode_of(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status.st_ino;
}

int64_t node_of(const std::string& path) {
  const auto inode = inode_of(path);
  const auto at = inode ? watch->nodes.find(*inode) : watch->nodes.end();
  return at == watch->nodes.end() ? -1 : at->second;
}

int64_t node_of(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return -1;
  const auto at = watch->nodes.find(status.st_ino);
  return at == watch->nodes.end() ? -1 : at->second;
}

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().native(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().native(); }

bool is_watched(const std::string& path) { return watch && is_below(path, watch->root); }

DiskFault fault_of(std::string_view call, const std::string& path, int fd = -1) {
  if (!faults || !is_below(path, faults->root)) return {};
  return faults->decide({call, path, fd});
}

int failed(int error) {
  errno = error;
  return -1;
}

// Makes the call unless it is meant to fail, then records `op`, with its values after the call.
template <typename Call, typename MakeOp>
int make_call(std::string_view name, const std::string& path, int fd, const Call& call,
              const MakeOp& make_op) {
  if (const DiskFault fault = fault_of(name, path, fd); fault.error != 0) return failed(fault.error);
  const int result = static_cast<int>(call());
  const int error = errno;
  if (result >= 0 && is_watched(path)) watch->ops.push_back(make_op());
  errno = error;
  return result;
}

int open_file(int folder_fd, const char* path, int flags, mode_t mode) {
  const std::lock_guard lock(mutex);
  const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;
  if (!changes || !is_active) {
    return static_cast<int>(::syscall(SYS_openat, folder_fd, path, flags, mode));
  }
  const std::string name = absolute(folder_fd, path);
  if (const DiskFault fault = fault_of("open", name); fault.error != 0) return failed(fault.error);
  const bool is_new = !inode_of(name);
  const int fd = static_cast<int>(::syscall(SYS_openat, folder_fd, path, flags, mode));
  const int error = errno;
  if (fd >= 0 && is_watched(name)) {
    if (is_new) {
      const int64_t node = watch->add(*inode_of(name));
      watch->ops.push_back({.kind = DiskOp::Kind::kCreate,
                            .node = node,
                            .folder = node_of(folder_of(name)),
                            .name = name_of(name)});
    } else if ((flags & O_TRUNC) != 0) {
      watch->ops.push_back({.kind = DiskOp::Kind::kTruncate, .node = node_of(fd)});
    }
  }
  errno = error;
  return fd;
}

ssize_t write_file(int fd, const void* data, size_t count, std::optional<off_t> offset) {
  const auto call = [&](size_t size) {
    return offset ? ::syscall(SYS_pwrite64, fd, data, size, *offset) : ::syscall(SYS_write, fd, data, size);
  };
  if (!is_active) return call(count);
  const std::lock_guard guard(mutex);
  const std::string path = path_of_fd(fd);
  const DiskFault fault = fault_of(offset ? "pwrite" : "write", path, fd);
  if (fault.error != 0) return failed(fault.error);
  const off_t at = offset ? *offset : ::lseek(fd, 0, SEEK_CUR);
  const ssize_t written = call(std::min<size_t>(count, static_cast<size_t>(fault.max_bytes)));
  const int error = errno;
  if (written > 0 && is_watched(path)) {
    watch->ops.push_back({.kind = DiskOp::Kind::kWrite,
                          .node = node_of(fd),
                          .offset = at,
                          .data = std::string(static_cast<const char*>(data), static_cast<size_t>(written))});
  }
  errno = error;
  return written;
}

int rename_file(const char* from, const char* to, unsigned flags) {
  const std::lock_guard lock(mutex);
  const auto call = [&] { return ::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags); };
  if (!is_active) return static_cast<int>(call());
  const std::string from_path = absolute(AT_FDCWD, from);
  const std::string to_path = absolute(AT_FDCWD, to);
  DiskOp op = {.kind = flags == 0 ? DiskOp::Kind::kRename : DiskOp::Kind::kExchange};
  if (is_watched(from_path)) {
    op.node = node_of(from_path);
    op.other = node_of(to_path);
    op.folder = node_of(folder_of(from_path));
    op.name = name_of(from_path);
    op.to_folder = node_of(folder_of(to_path));
    op.to_name = name_of(to_path);
  }
  return make_call("rename", from_path, -1, call, [&] { return op; });
}

int remove_file(int folder_fd, const char* path, int flags) {
  const std::lock_guard lock(mutex);
  const auto call = [&] { return ::syscall(SYS_unlinkat, folder_fd, path, flags); };
  if (!is_active) return static_cast<int>(call());
  const std::string name = absolute(folder_fd, path);
  return make_call("unlink", name, -1, call, [&] {
    return DiskOp{.kind = DiskOp::Kind::kRemove, .folder = node_of(folder_of(name)), .name = name_of(name)};
  });
}

int sync_fd(int fd, long number) {
  const std::lock_guard lock(mutex);
  const auto call = [&] { return ::syscall(number, fd); };
  if (!is_active) return static_cast<int>(call());
  return make_call("fsync", path_of_fd(fd), fd, call,
                   [&] { return DiskOp{.kind = DiskOp::Kind::kSync, .node = node_of(fd)}; });
}

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::string DiskOp::to_string() const {
  switch (kind) {
    case Kind::kCreate:
      return fmt::format("create {} in {} as {}", name, folder, node);
    case Kind::kMakeDir:
      return fmt::format("mkdir {} in {} as {}", name, folder, node);
    case Kind::kWrite:
      return fmt::format("write {} bytes to {} at {}", data.size(), node, offset);
    case Kind::kTruncate:
      return fmt::format("truncate {} to {}", node, offset);
    case Kind::kSync:
      return fmt::format("fsync {}", node);
    case Kind::kRename:
      return fmt::format("rename {} in {} to {} in {}", name, folder, to_name, to_folder);
    case Kind::kExchange:
      return fmt::format("exchange {} in {} and {} in {}", name, folder, to_name, to_folder);
    case Kind::kRemove:
      return fmt::format("remove {} in {}", name, folder);
  }
  return "";
}

DiskRecording::DiskRecording(const fs::path& folder) {
  auto fresh = std::make_unique<Watch>();
  fresh->root = absolute(AT_FDCWD, folder.c_str());
  fresh->add(*inode_of(fresh->root));
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().native();
    const int64_t node = fresh->add(*inode_of(path));
    fresh->before.push_back({node, fresh->nodes.at(*inode_of(folder_of(path))), name_of(path),
                             entry.is_directory(), entry.is_directory() ? "" : read_all(path)});
  }
  const std::lock_guard lock(mutex);
  watch = std::move(fresh);
  is_active = true;
}

DiskRecording::~DiskRecording() {
  const std::lock_guard lock(mutex);
  watch.reset();
  is_active = faults != nullptr;
}

const std::vector<DiskNode>& DiskRecording::before() const { return watch->before; }
const std::vector<DiskOp>& DiskRecording::ops() const { return watch->ops; }

DiskFaults::DiskFaults(const fs::path& folder, std::function<DiskFault(const DiskCall&)> decide) {
  const std::string root = absolute(AT_FDCWD, folder.c_str());
  const std::lock_guard lock(mutex);
  faults = std::make_unique<Faults>(Faults{root, std::move(decide)});
  is_active = true;
}

DiskFaults::~DiskFaults() {
  const std::lock_guard lock(mutex);
  faults.reset();
  is_active = watch != nullptr;
}

}  // namespace tessera

// Replacements for the C library's functions, for this program and the libraries it uses.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return tessera::open_file(AT_FDCWD, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t count) { return tessera::write_file(fd, data, count, {}); }

ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  return tessera::write_file(fd, data, count, offset);
}

int ftruncate(int fd, off_t size) noexcept {
  const std::lock_guard lock(tessera::mutex);
  const auto call = [&] { return ::syscall(SYS_ftruncate, fd, size); };
  if (!tessera::is_active) return static_cast<int>(call());
  return tessera::make_call("ftruncate", tessera::path_of_fd(fd), fd, call, [&] {
    return tessera::DiskOp{
        .kind = tessera::DiskOp::Kind::kTruncate, .node = tessera::node_of(fd), .offset = size};
  });
}

int fsync(int fd) { return tessera::sync_fd(fd, SYS_fsync); }
int fdatasync(int fd) { return tessera::sync_fd(fd, SYS_fdatasync); }

int rename(const char* from, const char* to) noexcept { return tessera::rename_file(from, to, 0); }
int renameat2(int, const char* from, int, const char* to, unsigned flags) noexcept {
  return tessera::rename_file(from, to, flags);
}

int unlink(const char* path) noexcept { return tessera::remove_file(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return tessera::remove_file(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder_fd, const char* path, int flags) noexcept {
  return tessera::remove_file(folder_fd, path, flags);
}
int remove(const char* path) noexcept {
  struct stat status = {};
  const bool is_folder = ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return tessera::remove_file(AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}

int mkdir(const char* path, mode_t mode) noexcept {
  const std::lock_guard lock(tessera::mutex);
  const auto call = [&] { return ::syscall(SYS_mkdir, path, mode); };
  if (!tessera::is_active) return static_cast<int>(call());
  const std::string name = tessera::absolute(AT_FDCWD, path);
  return tessera::make_call("mkdir", name, -1, call, [&] {
    return tessera::DiskOp{.kind = tessera::DiskOp::Kind::kMakeDir,
                           .node = tessera::watch->add(*tessera::inode_of(name)),
                           .folder = tessera::node_of(tessera::folder_of(name)),
                           .name = tessera::name_of(name)};
  });
}

int close(int fd) {
  if (!tessera::is_active) return static_cast<int>(::syscall(SYS_close, fd));
  const std::lock_guard lock(tessera::mutex);
  const bool is_written = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  const tessera::DiskFault fault =
      is_written ? tessera::fault_of("close", tessera::path_of_fd(fd), fd) : tessera::DiskFault();
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  return fault.error != 0 ? tessera::failed(fault.error) : result;
}

}  // extern "C"
