#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
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

std::byte* Arena::allocate_bytes(int64_t size_bytes) {
  TESSERA_CHECK(size_bytes >= 0, "size_bytes={}", size_bytes);
  const int64_t begin = used_bytes_;
  used_bytes_ += round_up(size_bytes, kCacheLineBytes);
  high_water_bytes_ = std::max(high_water_bytes_, used_bytes_);
  if (measuring_) return nullptr;
  TESSERA_CHECK(used_bytes_ <= static_cast<int64_t>(block_.size()),
                "arena of {} bytes, {} asked on top of {}", block_.size(), size_bytes, begin);
  return block_.data() + begin;
}

}  // namespace tessera
