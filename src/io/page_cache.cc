#include "io/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {

// The mapping is only passed to mincore, never accessed.
std::optional<double> cached_share(int fd, int64_t size_bytes) {
  if (size_bytes == 0) return 0;
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const auto size = static_cast<size_t>(size_bytes);
  void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages(static_cast<size_t>(divide_up(size_bytes, page_bytes)));
  const bool is_known = ::mincore(mapping, size, pages.data()) == 0;
  ::munmap(mapping, size);
  if (!is_known) return std::nullopt;
  const auto num_cached =
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<double>(num_cached) / static_cast<double>(pages.size());
}

void drop_from_page_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_errno(ExitCode::kNoInput, errno, fmt::format("{}: cannot open", path.native()));
  // Dirty pages cannot be evicted.
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const double share = cached_share(fd, static_cast<int64_t>(std::filesystem::file_size(path))).value_or(0);
  ::close(fd);
  if (share > 0.01) {
    fail(ExitCode::kBadConfig,
         "{}: {:.0f} % stays in the page cache: files there cannot be measured cold (a file system in "
         "memory?)",
         path.native(), 100 * share);
  }
}

int64_t read_ahead_bytes(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return 0;
  std::ifstream setting(
      fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", major(status.st_dev), minor(status.st_dev)));
  int64_t kibibytes = 0;
  setting >> kibibytes;
  return setting ? kibibytes << 10 : 0;
}

}  // namespace tessera
