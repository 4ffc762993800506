#include "plan/time/disk_rate.h"

#include <array>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/rng.h"
#include "base/stopwatch.h"
#include "io/async_file.h"
#include "io/file.h"
#include "plan/disk_plan.h"

namespace tessera {

std::optional<double> measured_disk_gb_per_s(const std::filesystem::path& folder) {
  // Chunks as those of a state file: some are read while others are written.
  constexpr int64_t kChunkBytes = 4 << 20, kNumChunks = 32;
  constexpr double kSeconds = 0.4;
  const std::filesystem::path existing = nearest_existing(folder);
  if (free_disk_bytes(existing) < 2 * kNumChunks * kChunkBytes) return std::nullopt;
  AsyncFile file(existing / "tessera-disk-rate", kNumChunks * kChunkBytes);
  PageBuffer memory(2 * kChunkBytes);
  // Disks may treat zeros in a way of their own.
  const CounterRng rng(3, 0);
  uint64_t i = 0;
  for (float& value : memory.as<float>()) value = static_cast<float>(rng.uniform(i++));
  const std::span<std::byte> out(memory.data(), kChunkBytes), in(memory.data() + kChunkBytes, kChunkBytes);
  for (int64_t chunk = 0; chunk < kNumChunks; ++chunk) file.wait(file.write(chunk * kChunkBytes, out));
  const Stopwatch time;
  int64_t num_moved = 0;
  do {
    const AsyncFile::Ticket reading = file.read(num_moved % kNumChunks * kChunkBytes, in);
    const AsyncFile::Ticket writing =
        file.write((num_moved + kNumChunks / 2) % kNumChunks * kChunkBytes, out);
    file.wait(reading);
    file.wait(writing);
    ++num_moved;
  } while (time.seconds() < kSeconds);
  return static_cast<double>(2 * num_moved * kChunkBytes) / time.seconds() * 1e-9;
}

}  // namespace tessera
