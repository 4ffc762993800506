#include "base/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/sanitizers.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// Reserves address space for `size` bytes at a multiple of 2 MiB, so that file pages can be mapped as huge
// pages; nullptr if the system refuses.
void* aligned_room(size_t size) {
  size = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const reserved =
      mmap(nullptr, size + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const auto address = reinterpret_cast<size_t>(begin);
  const size_t before = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes - address;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + size, kHugePageBytes - before);
  return begin + before;
}

void* map_pages(int fd, size_t size) {
  const int protection = PROT_READ | PROT_WRITE;
  if (fd < 0) return mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const room = size >= kHugePageBytes ? aligned_room(size) : nullptr;
  return mmap(room, size, protection, room == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED, fd, 0);
}

#ifdef TESSERA_TSAN
// ThreadSanitizer identifies memory by its address: ranks that are threads of one process get the same
// address for the same memory, so that it sees whether they synchronise.
class SharedMappings {
 public:
  static SharedMappings& instance() {
    static auto* const mappings = new SharedMappings;  // outlives every buffer
    return *mappings;
  }

  void* map(int fd, size_t size) {
    const std::lock_guard lock(mutex_);
    struct stat file {};
    if (fd < 0 || fstat(fd, &file) != 0) return map_pages(fd, size);
    for (Mapping& mapping : mappings_) {
      if (mapping.inode != file.st_ino || mapping.device != file.st_dev) continue;
      ++mapping.users;
      return mapping.address;
    }
    void* const address = map_pages(fd, size);
    if (address != MAP_FAILED) mappings_.push_back({file.st_dev, file.st_ino, address, 1});
    return address;
  }

  void unmap(void* address, size_t size) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < mappings_.size(); ++i) {
      if (mappings_[i].address != address) continue;
      if (--mappings_[i].users > 0) return;
      mappings_.erase(mappings_.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
    munmap(address, size);
  }

 private:
  struct Mapping {
    dev_t device;
    ino_t inode;
    void* address;
    int users;
  };
  std::mutex mutex_;
  std::vector<Mapping> mappings_;
};

void* map_segment(int fd, size_t size) { return SharedMappings::instance().map(fd, size); }
void unmap_segment(void* address, size_t size) { SharedMappings::instance().unmap(address, size); }
#else
void* map_segment(int fd, size_t size) { return map_pages(fd, size); }
void unmap_segment(void* address, size_t size) { munmap(address, size); }
#endif

}  // namespace

PageBuffer::PageBuffer(UniqueFd file, int64_t size_bytes) : size_bytes_(size_bytes) {
  TESSERA_CHECK(size_bytes >= 0, "size_bytes={}", size_bytes);
  if (size_bytes == 0) return;
  void* const mapped = map_segment(file.get(), static_cast<size_t>(size_bytes));
  if (mapped == MAP_FAILED) {
    fail_errno(ExitCode::kBadConfig, errno,
               fmt::format("cannot {} {} of {}", file ? "map" : "reserve", count_of(size_bytes, "byte"),
                           file ? "shared memory" : "memory"));
  }
  data_ = static_cast<std::byte*>(mapped);
  // Below one huge page the advice would only waste memory. It takes effect on shared memory where the
  // system's shmem_enabled is "advise"; a refusal costs speed, not correctness.
  if (size_bytes >= static_cast<int64_t>(kHugePageBytes))
    madvise(mapped, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) unmap_segment(data_, static_cast<size_t>(size_bytes_));
}

}  // namespace tessera
