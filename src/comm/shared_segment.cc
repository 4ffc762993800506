#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "comm/local_socket.h"
#include "comm/node_group.h"

namespace tessera {

SharedSegment::SharedSegment(int fd, int64_t size_bytes) : size_bytes_(size_bytes) {
  const UniqueFd owned(fd);
  TESSERA_CHECK(size_bytes >= 0, "size_bytes={}", size_bytes);
  if (size_bytes == 0) return;
  const int flags = owned ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* mapped =
      mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, flags, owned.get(), 0);
  if (mapped == MAP_FAILED) {
    fail_errno(ExitCode::kBadConfig, errno, fmt::format("cannot map {} bytes of shared memory", size_bytes));
  }
  data_ = static_cast<std::byte*>(mapped);
  // Heeded for shared memory where the system's shmem_enabled is "advise"; a refusal costs speed only.
  constexpr int64_t kHugePageBytes = 2 << 20;
  if (size_bytes >= kHugePageBytes) madvise(mapped, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace tessera
