#include "platform/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

#include "base/memory.h"

namespace tessera {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int kMadvPopulateWrite = 23;  // Linux 5.14; not in every libc's headers

void touch(std::byte* begin, std::byte* end) {
  for (std::byte* page = begin; page < end; page += kPageBytes) {
    volatile std::byte* byte = page;
    *byte = *byte;
  }
}

}  // namespace

void prefault(ThreadPool& pool, std::span<std::byte> memory) {
  if (memory.empty()) return;
  // Pages that lie partly outside belong to the thread of their part inside.
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t page_begin = first / kPageBytes * kPageBytes;
  const int64_t size = static_cast<int64_t>(first - page_begin) + static_cast<int64_t>(memory.size());
  pool.parallel_blocks(size, kHugePageBytes, [&](int64_t begin, int64_t end) {
    const int64_t bytes = round_up(end - begin, kPageBytes);
    auto* const block = reinterpret_cast<std::byte*>(page_begin) + begin;
    if (madvise(block, static_cast<size_t>(bytes), kMadvPopulateWrite) == 0) return;
    touch(std::max(block, memory.data()), std::min(block + bytes, memory.data() + memory.size()));
  });
}

std::optional<int64_t> huge_page_bytes(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    const char* const last = line.data() + line.size();
    const auto [dash, error] = std::from_chars(line.data(), last, begin, 16);
    if (error == std::errc() && dash < last && *dash == '-') {
      std::from_chars(dash + 1, last, end, 16);
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.starts_with("AnonHugePages:")) {
      return std::stoll(line.substr(line.find(':') + 1)) * 1024;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
