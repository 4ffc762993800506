#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"
#include "base/text.h"

namespace tessera {

PageBuffer::PageBuffer(int64_t size_bytes) : size_bytes_(size_bytes) {
  TESSERA_CHECK(size_bytes >= 0, "size_bytes={}", size_bytes);
  if (size_bytes == 0) return;
  void* mapped = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    fail_errno(ExitCode::kBadConfig, errno,
               fmt::format("cannot reserve {} of memory", count_of(size_bytes, "byte")));
  }
  data_ = static_cast<std::byte*>(mapped);
  // Below one huge page the advice would only waste memory; a refusal costs speed, not correctness.
  constexpr int64_t kHugePageBytes = 2 << 20;
  if (size_bytes >= kHugePageBytes) madvise(mapped, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
}

}  // namespace tessera
