#include "checkpoint/snapshot_slot.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "platform/crc32c.h"
#include "platform/prefault.h"

namespace tessera {

static_assert(sizeof(ElementRange) == 2 * sizeof(int64_t));

struct SnapshotHeader {
  uint64_t magic = 0;
  SnapshotId id;
  int64_t rank = 0;
  SnapshotSizes sizes;
  uint32_t checksums_crc = 0;
  uint32_t crc = 0;  // over the bytes before it
};
static_assert(std::is_trivially_copyable_v<SnapshotHeader>);
static_assert(sizeof(SnapshotHeader) ==
              8 + sizeof(SnapshotId) + 8 + sizeof(SnapshotSizes) + 2 * sizeof(uint32_t));

namespace {

constexpr uint64_t kMagic = 0x32504E5341535354;  // "TSSASNP2"
constexpr int64_t kHeaderBytes = 4096;
// Filled and checked by a thread at a time: fits in L2.
constexpr int64_t kChecksumBlockBytes = int64_t{256} << 10;
// The texts of a run may grow by this much before more memory is needed.
constexpr int64_t kSlackBytes = int64_t{64} << 10;

// The regions after the values; every StateKind has a region of values.
enum Region { kRanges, kRun, kLogHistory, kChecksums, kNumRegionsAfterValues };

int64_t num_blocks(int64_t size_bytes) { return divide_up(size_bytes, kChecksumBlockBytes); }

struct Layout {
  explicit Layout(const SnapshotSizes& sizes) : num_values(1 + static_cast<size_t>(sizes.num_state_tensors)) {
    const auto value_bytes = static_cast<int64_t>(sizeof(float));
    std::fill_n(size.begin(), num_values, sizes.num_elements * value_bytes);
    size[index(kRanges)] = sizes.num_ranges * static_cast<int64_t>(sizeof(ElementRange));
    size[index(kRun)] = sizes.run_bytes;
    size[index(kLogHistory)] = sizes.log_history_bytes;
    for (size_t region = 0; region < index(kChecksums); ++region) total_blocks += num_blocks(size[region]);
    size[index(kChecksums)] = total_blocks * static_cast<int64_t>(sizeof(uint32_t));
    int64_t at = kHeaderBytes;
    for (size_t region = 0; region < index(kNumRegionsAfterValues); ++region) {
      offset[region] = at;
      at += round_up(size[region], kCacheLineBytes);
    }
    total_bytes = at;
  }

  size_t index(Region region) const { return num_values + static_cast<size_t>(region); }

  struct Block {
    size_t region = 0;
    int64_t begin = 0;  // in the region
    int64_t size = 0;
  };
  Block block(int64_t block_index) const {
    size_t region = 0;
    for (; block_index >= num_blocks(size[region]); ++region) block_index -= num_blocks(size[region]);
    const int64_t begin = block_index * kChecksumBlockBytes;
    return {region, begin, std::min(kChecksumBlockBytes, size[region] - begin)};
  }

  static constexpr size_t kMaxRegions = 1 + kMaxStateTensors + kNumRegionsAfterValues;
  size_t num_values;  // regions with the values of a StateKind, in this order
  std::array<int64_t, kMaxRegions> offset = {};
  std::array<int64_t, kMaxRegions> size = {};
  int64_t total_blocks = 0;
  int64_t total_bytes = 0;
};

int64_t memory_for(int64_t slot_bytes) { return round_up(slot_bytes + kSlackBytes, kSlackBytes); }

uint32_t header_crc(const SnapshotHeader& header) {
  return crc32c(0, std::as_bytes(std::span(&header, 1)).first(sizeof(header) - sizeof(header.crc)));
}

// The sizes are plausible: the file bounds them.
bool fits(const SnapshotSizes& sizes, int64_t file_bytes) {
  if (sizes.num_state_tensors < 0 || sizes.num_state_tensors > static_cast<int64_t>(kMaxStateTensors))
    return false;
  for (const int64_t count :
       {sizes.num_ranges, sizes.num_elements, sizes.run_bytes, sizes.log_history_bytes}) {
    if (count < 0 || count > file_bytes) return false;
  }
  return Layout(sizes).total_bytes <= file_bytes;
}

// Reads elements [first, first + values.size()) of the concatenated ranges; `ends` are the ranges' ends in
// the concatenation.
void read_elements(std::span<const ElementRange> ranges, const std::vector<int64_t>& ends, int64_t first,
                   std::span<float> values, StateKind kind, const StateSource& source) {
  auto at = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), first) - ends.begin());
  while (!values.empty()) {
    const int64_t left = ends[at] - first;
    const auto count = std::min(values.size(), static_cast<size_t>(left));
    source(kind, ranges[at].end - left, values.first(count));
    values = values.subspan(count);
    first += static_cast<int64_t>(count);
    ++at;
  }
}

}  // namespace

int64_t SnapshotSizes::slot_bytes() const { return Layout(*this).total_bytes; }

int64_t SnapshotSizes::memory_bytes() const { return memory_for(slot_bytes()); }

int64_t peer_snapshot_bytes(int64_t num_elements, int64_t num_state_tensors, int num_nodes) {
  SnapshotSizes sizes;
  sizes.num_state_tensors = num_state_tensors;
  sizes.num_elements = num_elements;
  return (num_nodes > 1 ? 4 : 2) * sizes.memory_bytes();
}

SnapshotSlot::SnapshotSlot(int fd) : fd_(fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) {
    fail_errno(ExitCode::kBadConfig, errno,
               fmt::format("environment: {} names descriptor {}", kSnapshotSlotsVariable, fd));
  }
  map();
}

void SnapshotSlot::map() {
  struct stat file {};
  TESSERA_CHECK(fstat(fd_, &file) == 0, "errno {}", errno);
  if (memory_.size_bytes() == file.st_size) return;
  memory_ = PageBuffer();
  if (file.st_size > 0) memory_ = PageBuffer(UniqueFd(dup(fd_)), file.st_size);
}

const SnapshotHeader* SnapshotSlot::whole_header() const {
  if (memory_.size_bytes() < kHeaderBytes) return nullptr;
  const auto* header = reinterpret_cast<const SnapshotHeader*>(memory_.data());
  const bool is_whole = header->magic == kMagic && header->crc == header_crc(*header) &&
                        fits(header->sizes, memory_.size_bytes());
  return is_whole ? header : nullptr;
}

std::optional<SnapshotSlot::Content> SnapshotSlot::content() const {
  const SnapshotHeader* header = whole_header();
  if (header == nullptr) return std::nullopt;
  return Content{header->id, header->rank, header->sizes};
}

bool SnapshotSlot::verify(ThreadPool& pool) const {
  const SnapshotHeader* header = whole_header();
  if (header == nullptr) return false;
  const Layout layout(header->sizes);
  const std::byte* checksums = memory_.data() + layout.offset[layout.index(kChecksums)];
  if (crc32c(0, {checksums, static_cast<size_t>(layout.size[layout.index(kChecksums)])}) !=
      header->checksums_crc) {
    return false;
  }
  std::atomic<bool> is_whole = true;
  pool.parallel_for(layout.total_blocks, [&](int64_t i) {
    const Layout::Block block = layout.block(i);
    const std::byte* data = memory_.data() + layout.offset[block.region] + block.begin;
    if (crc32c(0, {data, static_cast<size_t>(block.size)}) !=
        reinterpret_cast<const uint32_t*>(checksums)[i]) {
      is_whole.store(false, std::memory_order_relaxed);
    }
  });
  return is_whole;
}

int64_t SnapshotSlot::held_bytes() const {
  constexpr int64_t kStatBlock = 512;
  struct stat file {};
  TESSERA_CHECK(fstat(fd_, &file) == 0, "errno {}", errno);
  return file.st_blocks * kStatBlock;
}

void SnapshotSlot::prepare(int64_t slot_bytes, ThreadPool& pool) {
  if (memory_.size_bytes() > 0) std::memset(memory_.data(), 0, sizeof(SnapshotHeader));
  if (slot_bytes <= memory_.size_bytes() && memory_.size_bytes() <= 2 * (slot_bytes + kSlackBytes)) return;
  const int64_t size = memory_for(slot_bytes);
  // Missing memory is an error here instead of a signal on first touch.
  if (ftruncate(fd_, size) != 0 || fallocate(fd_, 0, 0, size) != 0) {
    const int error = errno;
    clear();
    fail_errno(ExitCode::kBadConfig, error,
               fmt::format("peer_snapshot_steps: {} of memory for a snapshot", format_bytes(size)));
  }
  map();
  prefault_shared(pool, {memory_.data(), static_cast<size_t>(size)}, 0, size);
}

void SnapshotSlot::clear() {
  memory_ = PageBuffer();
  TESSERA_CHECK(ftruncate(fd_, 0) == 0, "errno {}", errno);
}

std::span<std::byte> SnapshotSlot::header() const {
  return {memory_.data(), static_cast<size_t>(kHeaderBytes)};
}

std::span<std::byte> SnapshotSlot::body(int64_t slot_bytes) const {
  TESSERA_CHECK(kHeaderBytes <= slot_bytes && slot_bytes <= memory_.size_bytes(), "{} bytes", slot_bytes);
  return {memory_.data() + kHeaderBytes, static_cast<size_t>(slot_bytes - kHeaderBytes)};
}

void SnapshotSlot::write(const SnapshotId& id, int64_t rank, std::span<const ElementRange> ranges,
                         int64_t num_state_tensors, const StateSource& source, const SnapshotTexts& texts,
                         ThreadPool& pool) {
  SnapshotHeader header = {.magic = kMagic, .id = id, .rank = rank, .sizes = {}};
  header.sizes.num_state_tensors = num_state_tensors;
  header.sizes.num_ranges = std::ssize(ranges);
  header.sizes.run_bytes = std::ssize(texts.run);
  header.sizes.log_history_bytes = std::ssize(texts.log_history);
  std::vector<int64_t> ends;
  for (const ElementRange& range : ranges) {
    ends.push_back(header.sizes.num_elements += range.end - range.begin);
  }
  const Layout layout(header.sizes);
  TESSERA_CHECK(layout.total_bytes <= memory_.size_bytes(), "{} bytes of {}", layout.total_bytes,
                memory_.size_bytes());
  const auto copy = [&](Region region, const void* from) {
    const size_t at = layout.index(region);
    if (layout.size[at] == 0) return;
    std::memcpy(memory_.data() + layout.offset[at], from, static_cast<size_t>(layout.size[at]));
  };
  copy(kRanges, ranges.data());
  copy(kRun, texts.run.data());
  copy(kLogHistory, texts.log_history.data());
  std::byte* checksums = memory_.data() + layout.offset[layout.index(kChecksums)];
  pool.parallel_for(layout.total_blocks, [&](int64_t i) {
    const Layout::Block block = layout.block(i);
    std::byte* data = memory_.data() + layout.offset[block.region] + block.begin;
    if (block.region < layout.num_values) {
      constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
      read_elements(ranges, ends, block.begin / kFloat,
                    {reinterpret_cast<float*>(data), static_cast<size_t>(block.size / kFloat)},
                    StateKind{block.region}, source);
    }
    reinterpret_cast<uint32_t*>(checksums)[i] = crc32c(0, {data, static_cast<size_t>(block.size)});
  });
  header.checksums_crc = crc32c(0, {checksums, static_cast<size_t>(layout.size[layout.index(kChecksums)])});
  header.crc = header_crc(header);
  std::memcpy(memory_.data(), &header, sizeof(header));
}

std::span<const ElementRange> SnapshotSlot::ranges() const {
  const Layout layout(whole_header()->sizes);
  return {reinterpret_cast<const ElementRange*>(memory_.data() + layout.offset[layout.index(kRanges)]),
          static_cast<size_t>(whole_header()->sizes.num_ranges)};
}

std::span<const float> SnapshotSlot::values(StateKind kind) const {
  const Layout layout(whole_header()->sizes);
  const auto at = static_cast<size_t>(kind);
  return {reinterpret_cast<const float*>(memory_.data() + layout.offset[at]),
          static_cast<size_t>(whole_header()->sizes.num_elements)};
}

SnapshotTexts SnapshotSlot::texts() const {
  const Layout layout(whole_header()->sizes);
  const auto text = [&](Region region) {
    const size_t at = layout.index(region);
    return std::string_view(reinterpret_cast<const char*>(memory_.data() + layout.offset[at]),
                            static_cast<size_t>(layout.size[at]));
  };
  return {text(kRun), text(kLogHistory)};
}

}  // namespace tessera
