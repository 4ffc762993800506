#include "comm/ranks/rank_position.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

constexpr size_t kTextWords = 6;
constexpr size_t kFolderWords = 128;
// A reader that finds a write in progress this often is looking at a writer that was killed or stopped during
// the write.
constexpr int kReadAttempts = 1000;

// The clock shared by all processes of a machine.
int64_t monotonic_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Words that are written together, guarded by a version that is odd during a write, as in a seqlock. Words
// are stored with release and loaded with acquire order, so that a reader that sees one word of a write also
// sees its odd version.
template <size_t kWords>
struct alignas(64) Record {
  using Words = std::array<uint64_t, kWords>;

  void write(const Words& values) noexcept {
    uint64_t before = version.load(std::memory_order_relaxed);
    if (before % 2 == 1 || !version.compare_exchange_strong(before, before + 1, std::memory_order_acquire)) {
      return;
    }
    for (size_t i = 0; i < kWords; ++i) words[i].store(values[i], std::memory_order_release);
    version.store(before + 2, std::memory_order_release);
  }

  // False: nothing was written yet, or a writer died during a write.
  bool read(Words* values) const {
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      const uint64_t before = version.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) (*values)[i] = words[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) return before > 0;
    }
    return false;
  }

  std::atomic<uint64_t> version;
  std::array<std::atomic<uint64_t>, kWords> words;
};

// Zero-terminated text stored in words.
template <size_t kWords>
void put_text(const char* text, uint64_t* words) {
  std::array<char, kWords * sizeof(uint64_t)> bytes = {};
  std::strncpy(bytes.data(), text, bytes.size() - 1);
  std::memcpy(words, bytes.data(), bytes.size());
}

template <size_t kWords>
std::string get_text(const uint64_t* words) {
  const char* bytes = reinterpret_cast<const char*>(words);
  return {bytes, strnlen(bytes, kWords * sizeof(uint64_t))};
}

// Number, layer, bytes, peer and whether it is over, time, text.
constexpr size_t kEntryWords = 6 + kTextWords;
using Entry = Record<kEntryWords>;

}  // namespace

// Initially all zero.
struct PositionMemory {
  std::array<Entry, kNumActivities> entries;
  Record<2> network;
  Record<kFolderWords> folder;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

int64_t RankPosition::size_bytes() { return sizeof(PositionMemory); }

RankPosition::RankPosition() {
  void* const memory =
      mmap(nullptr, sizeof(PositionMemory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_errno(ExitCode::kBadConfig, errno, "memory for a rank's position");
  memory_ = static_cast<PositionMemory*>(memory);
}

RankPosition::RankPosition(int fd) {
  void* const memory = mmap(nullptr, sizeof(PositionMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail_errno(ExitCode::kIoError, errno, "memory for a rank's position");
  memory_ = static_cast<PositionMemory*>(memory);
}

RankPosition RankPosition::of_rank(const std::string& path) {
  if (path.empty()) return {};
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  // Touching a mapped page beyond the end of the file would raise SIGBUS.
  if (!fd || lseek(fd.get(), 0, SEEK_END) < size_bytes()) {
    log_debug("cannot record this rank's position for the launcher: {}: {}", path,
              fd ? "too small" : std::strerror(errno));
    return {};
  }
  return RankPosition(fd.get());
}

RankPosition::RankPosition(RankPosition&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}

RankPosition::~RankPosition() {
  if (memory_ != nullptr) munmap(memory_, sizeof(PositionMemory));
}

void RankPosition::mark(Activity activity, const PositionMark& mark) noexcept {
  Entry::Words words = {static_cast<uint64_t>(mark.number),  static_cast<uint64_t>(mark.layer),
                        static_cast<uint64_t>(mark.bytes),   static_cast<uint64_t>(int64_t{mark.peer}),
                        static_cast<uint64_t>(mark.is_over), static_cast<uint64_t>(monotonic_ns())};
  put_text<kTextWords>(mark.what, words.data() + 6);
  memory_->entries[static_cast<size_t>(activity)].write(words);
}

void RankPosition::count_network(int64_t sent_bytes, int64_t received_bytes) noexcept {
  memory_->network.write({static_cast<uint64_t>(sent_bytes), static_cast<uint64_t>(received_bytes)});
}

void RankPosition::set_folder(const std::filesystem::path& folder) noexcept {
  Record<kFolderWords>::Words words;
  if (folder.native().size() >= sizeof(words)) return;
  put_text<kFolderWords>(folder.c_str(), words.data());
  memory_->folder.write(words);
}

PositionReading RankPosition::read() const {
  PositionReading reading;
  const int64_t now = monotonic_ns();
  for (size_t i = 0; i < memory_->entries.size(); ++i) {
    Entry::Words words;
    if (!memory_->entries[i].read(&words)) continue;
    reading.is_there = true;
    reading.entries[i] = {.what = get_text<kTextWords>(words.data() + 6),
                          .number = static_cast<int64_t>(words[0]),
                          .layer = static_cast<int64_t>(words[1]),
                          .bytes = static_cast<int64_t>(words[2]),
                          .peer = static_cast<int>(static_cast<int64_t>(words[3])),
                          .is_over = words[4] != 0,
                          .age_s = static_cast<double>(now - static_cast<int64_t>(words[5])) * 1e-9};
  }
  if (Record<2>::Words words; memory_->network.read(&words)) {
    reading.sent_bytes = static_cast<int64_t>(words[0]);
    reading.received_bytes = static_cast<int64_t>(words[1]);
  }
  if (Record<kFolderWords>::Words words; memory_->folder.read(&words)) {
    reading.folder = get_text<kFolderWords>(words.data());
  }
  return reading;
}

}  // namespace tessera
