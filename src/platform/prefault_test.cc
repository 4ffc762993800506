#include "platform/prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

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

TEST(Prefault, LargeBuffersGetHugePages) {
  const std::string mode = huge_pages().transparent;
  if (mode != "madvise" && mode != "always") GTEST_SKIP() << "transparent huge pages: '" << mode << "'";
  ThreadPool pool(2);
  const PageBuffer buffer(int64_t{64} << 20);
  prefault(pool, buffer.as<std::byte>());
  const std::optional<int64_t> huge = huge_page_bytes(buffer.data() + (32 << 20));
  if (!huge) GTEST_SKIP() << "the kernel has no /proc/self/smaps";
  // Fragmented memory may refuse some.
  EXPECT_GT(*huge, 0);
}

}  // namespace
}  // namespace tessera
