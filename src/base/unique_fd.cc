#include "base/unique_fd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tessera {

void UniqueFd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::string UniqueFd::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), fd_); }

UniqueFd memory_file(const std::string& name, int64_t size_bytes) {
  constexpr size_t kMaxNameBytes = 200;  // the kernel takes up to 249
  UniqueFd file(memfd_create(name.substr(0, kMaxNameBytes).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool is_made =
      file &&
      (size_bytes == 0 || (ftruncate(file.get(), size_bytes) == 0 &&
                           fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0));
  return is_made ? std::move(file) : UniqueFd();
}

}  // namespace tessera
