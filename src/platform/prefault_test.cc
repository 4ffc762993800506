#include "platform/prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/memory.h"
#include "platform/topology.h"

namespace tessera {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t num_resident_pages(const PageBuffer& buffer) {
  std::vector<unsigned char> resident(
      static_cast<size_t>(round_up(buffer.size_bytes(), kPageBytes) / kPageBytes));
  EXPECT_EQ(mincore(buffer.data(), static_cast<size_t>(buffer.size_bytes()), resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(Prefault, EveryPageIsThereAndContentsStay) {
  for (const int64_t size : {int64_t{1}, kPageBytes + 1, (int64_t{5} << 20) + 17}) {
    ThreadPool pool(3);
    const PageBuffer buffer(size);
    const auto bytes = buffer.as<std::byte>();
    bytes.back() = std::byte{7};
    prefault(pool, bytes);
    EXPECT_EQ(num_resident_pages(buffer), round_up(size, kPageBytes) / kPageBytes) << size << " bytes";
    EXPECT_EQ(bytes.back(), std::byte{7}) << size << " bytes";
    EXPECT_EQ(std::count(bytes.begin(), bytes.end() - 1, std::byte{0}), size - 1) << size << " bytes";
  }
}

TEST(Prefault, TakesPartsOfPagesAndNothing) {
  ThreadPool pool(2);
  const PageBuffer buffer(4 * kPageBytes);
  prefault(pool, buffer.as<std::byte>().subspan(100, kPageBytes));
  EXPECT_GE(num_resident_pages(buffer), 2);
  prefault(pool, {});
}

// A memfd mapped at a multiple of 2 MiB.
class SharedMapping {
 public:
  explicit SharedMapping(int64_t size_bytes) : size_(static_cast<size_t>(size_bytes)) {
    const int fd = memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, size_bytes), 0);
    reserved_ = mmap(nullptr, size_ + kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto address = reinterpret_cast<size_t>(reserved_);
    void* const aligned =
        static_cast<std::byte*>(reserved_) + ((address + kBlock - 1) / kBlock * kBlock - address);
    void* const mapped = mmap(aligned, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    EXPECT_EQ(mapped, aligned);
    data_ = static_cast<std::byte*>(mapped);
    close(fd);
  }
  ~SharedMapping() { munmap(reserved_, size_ + kBlock); }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  // In the memfd, whichever process faulted them in.
  int64_t num_resident_pages(int64_t begin, int64_t end) const {
    std::vector<unsigned char> resident(static_cast<size_t>((end - begin + kPageBytes - 1) / kPageBytes));
    EXPECT_EQ(mincore(data_ + begin, static_cast<size_t>(end - begin), resident.data()), 0);
    return std::count_if(resident.begin(), resident.end(),
                         [](unsigned char page) { return (page & 1) != 0; });
  }

 private:
  static constexpr size_t kBlock = size_t{2} << 20;
  size_t size_;
  void* reserved_ = nullptr;
  std::byte* data_ = nullptr;
};

TEST(PrefaultShared, TheBlocksThatBeginInTheRangeAreThereAndContentsStay) {
  constexpr int64_t kBlock = int64_t{2} << 20;
  constexpr int64_t kSize = 5 * kBlock + 3 * kPageBytes + 17;
  const SharedMapping mapping(kSize);
  const std::span<std::byte> bytes = mapping.bytes();
  bytes[kBlock + 5] = std::byte{7};
  bytes.back() = std::byte{9};
  ThreadPool pool(2);
  // Two ranks would do this: the block that lies in both ranges belongs to the first.
  prefault_shared(pool, bytes, 0, 2 * kBlock + 100);
  EXPECT_EQ(mapping.num_resident_pages(0, 3 * kBlock), 3 * kBlock / kPageBytes);
  EXPECT_EQ(mapping.num_resident_pages(3 * kBlock, 5 * kBlock), 0);
  prefault_shared(pool, bytes, 2 * kBlock + 100, kSize);
  EXPECT_EQ(mapping.num_resident_pages(0, kSize), round_up(kSize, kPageBytes) / kPageBytes);
  EXPECT_EQ(bytes[kBlock + 5], std::byte{7});
  EXPECT_EQ(bytes.back(), std::byte{9});
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), kSize - 2);
  prefault_shared(pool, bytes, 100, 100);
  prefault_shared(pool, bytes, kSize, kSize);
}

TEST(PrefaultShared, GivesHugePages) {
  ThreadPool pool(2);
  const SharedMapping mapping(int64_t{64} << 20);
  const std::span<std::byte> bytes = mapping.bytes();
  prefault_shared(pool, bytes, 0, std::ssize(bytes));
  EXPECT_EQ(mapping.num_resident_pages(0, std::ssize(bytes)), std::ssize(bytes) / kPageBytes);
  const std::optional<int64_t> huge = huge_page_bytes(bytes.data() + (32 << 20));
  if (!huge) GTEST_SKIP() << "the kernel has no /proc/self/smaps";
  // Older kernels, "deny" and fragmented memory yield small pages.
  if (madvise(bytes.data(), size_t{2} << 20, 25 /* MADV_COLLAPSE */) != 0)
    GTEST_SKIP() << "the kernel does not gather shared pages";
  EXPECT_GT(*huge, 0);
}

TEST(Prefault, LargeBuffersGetHugePages) {
  const std::string mode = huge_pages().transparent;
  if (mode != "madvise" && mode != "always") GTEST_SKIP() << "transparent huge pages: '" << mode << "'";
  ThreadPool pool(2);
  const PageBuffer buffer(int64_t{64} << 20);
  prefault(pool, buffer.as<std::byte>());
  const std::optional<int64_t> huge = huge_page_bytes(buffer.data() + (32 << 20));
  if (!huge) GTEST_SKIP() << "the kernel has no /proc/self/smaps";
  // Fragmented memory may yield only some huge pages.
  EXPECT_GT(*huge, 0);
}

}  // namespace
}  // namespace tessera
