#include "io/disk_rate.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "io/disk_space.h"
#include "io/file.h"

namespace tessera {
namespace {

// Memory for the blocks in flight.
constexpr int64_t kBlockMemory = int64_t{16} << 20;
// Less tells little, and a disk with less room has no use for it.
constexpr int64_t kLeastRoom = int64_t{256} << 20;

class RateTrial {
 public:
  RateTrial(AsyncFile& file, int64_t block_bytes)
      : file_(&file),
        block_bytes_(block_bytes),
        memory_(std::max(kBlockMemory / block_bytes, int64_t{1}) * block_bytes),
        tickets_(static_cast<size_t>(memory_.size_bytes() / block_bytes)) {
    // Disks may treat zeros in a way of their own.
    const CounterRng rng(1, 0);
    uint64_t i = 0;
    for (float& value : memory_.as<float>()) value = rng.uniform(i++);
  }

  // Moves whole blocks of the first `max_bytes` until `seconds` are over, at least one; returns their bytes
  // and the time.
  std::pair<int64_t, double> move(bool reads, int64_t max_bytes, double seconds) {
    const Stopwatch watch;
    int64_t done = 0;
    for (size_t i = 0; done == 0 || (done + block_bytes_ <= max_bytes && watch.seconds() < seconds); ++i) {
      std::optional<AsyncFile::Ticket>& ticket = tickets_[i % tickets_.size()];
      if (ticket) file_->wait(*ticket);
      const std::span<std::byte> block(
          memory_.data() + static_cast<int64_t>(i % tickets_.size()) * block_bytes_,
          static_cast<size_t>(block_bytes_));
      ticket = reads ? file_->read(done, block) : file_->write(done, block);
      done += block_bytes_;
    }
    file_->wait_all();
    return {done, watch.seconds()};
  }

 private:
  AsyncFile* file_;
  int64_t block_bytes_;
  PageBuffer memory_;
  std::vector<std::optional<AsyncFile::Ticket>> tickets_;  // by block of memory
};

}  // namespace

DiskRate measure_disk_rate(const std::filesystem::path& folder, const AsyncFileSettings& settings,
                           double seconds) {
  std::error_code ignored;
  const auto free =
      static_cast<int64_t>(std::min<uintmax_t>(disk_space(folder, ignored).available, 2 * kDiskRateBytes));
  const int64_t block_bytes = std::min(settings.block_bytes, kBlockMemory);
  const int64_t size_bytes = std::max(free / 2 / block_bytes, int64_t{1}) * block_bytes;
  AsyncFile file(folder / ".rate", size_bytes, settings);
  RateTrial trial(file, block_bytes);
  const auto [written_bytes, written_s] = trial.move(/*reads=*/false, size_bytes, seconds);
  // Blocks that were never written would be read without touching the disk.
  const auto [read_bytes, read_s] = trial.move(/*reads=*/true, written_bytes, seconds);
  return {.read_bytes_per_s = static_cast<double>(read_bytes) / read_s,
          .written_bytes_per_s = static_cast<double>(written_bytes) / written_s,
          .is_direct = file.is_direct(),
          .uses_io_uring = file.uses_io_uring()};
}

std::optional<DiskRate> try_disk_rate(const std::filesystem::path& folder,
                                      const AsyncFileSettings& settings) {
  const std::filesystem::path existing = nearest_existing(folder);
  std::error_code error;
  const std::filesystem::space_info space = disk_space(existing, error);
  if (error || space.available < kLeastRoom) return std::nullopt;
  return measure_disk_rate(existing, settings);
}

}  // namespace tessera
