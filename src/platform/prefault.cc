#include "platform/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Missing from some libc headers.
constexpr int kMadvPopulateWrite = 23;  // Linux 5.14
constexpr int kMadvCollapse = 25;       // Linux 6.1

void touch(std::byte* begin, std::byte* end) {
  for (std::byte* page = begin; page < end; page += kPageBytes) {
    volatile std::byte* byte = page;
    *byte = *byte;
  }
}

void read_byte(const std::byte* address) {
  [[maybe_unused]] const std::byte value = *static_cast<const volatile std::byte*>(address);
}

}  // namespace

void prefault(ThreadPool& pool, std::span<std::byte> memory) {
  if (memory.empty()) return;
  // A page that lies partly outside belongs to the thread that has its inner part.
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

void prefault_shared(ThreadPool& pool, std::span<std::byte> memory, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(memory.size());
  TESSERA_CHECK(0 <= begin && begin <= end && end <= size, "[{}, {}) of {}", begin, end, size);
  begin = std::min(round_up(begin, kHugePageBytes), size);
  end = std::min(round_up(end, kHugePageBytes), size);
  if (begin == end) return;
  // One call per thread, because each call makes the kernel wait for all processors.
  const int64_t share = round_up((end - begin + pool.num_threads() - 1) / pool.num_threads(), kHugePageBytes);
  pool.parallel_blocks(end - begin, share, [&](int64_t first, int64_t last) {
    std::byte* const data = memory.data() + begin + first;
    const int64_t bytes = last - first;
    // A block without any page has no page table yet and would be refused. Reading maps a zero page there;
    // writing is not safe, because others may be writing.
    for (int64_t at = 0; at < bytes; at += kHugePageBytes) read_byte(data + at);
    const int64_t whole_blocks = bytes / kHugePageBytes * kHugePageBytes;
    const bool collapsed =
        whole_blocks > 0 && madvise(data, static_cast<size_t>(whole_blocks), kMadvCollapse) == 0;
    const int64_t rest = collapsed ? whole_blocks : 0;
    if (rest == bytes) return;
    const auto rest_bytes = static_cast<size_t>(round_up(bytes - rest, kPageBytes));
    if (madvise(data + rest, rest_bytes, kMadvPopulateWrite) == 0) return;
    for (int64_t at = rest; at < bytes; at += kPageBytes) read_byte(data + at);
  });
}

std::optional<int64_t> huge_page_bytes(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  std::optional<int64_t> bytes;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    const char* const last = line.data() + line.size();
    const auto [dash, error] = std::from_chars(line.data(), last, begin, 16);
    if (error == std::errc() && dash < last && *dash == '-') {
      std::from_chars(dash + 1, last, end, 16);
      inside = begin <= wanted && wanted < end;
    } else if (inside && (line.starts_with("AnonHugePages:") || line.starts_with("ShmemPmdMapped:"))) {
      bytes = bytes.value_or(0) + std::stoll(line.substr(line.find(':') + 1)) * 1024;
    }
  }
  return bytes;
}

std::optional<int64_t> try_huge_pages(ThreadPool& pool) {
  const PageBuffer trial(kHugePageTrialBytes);
  prefault(pool, trial.as<std::byte>());
  return huge_page_bytes(trial.data() + kHugePageTrialBytes / 2);
}

}  // namespace tessera
