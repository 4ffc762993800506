// Sequential read and write rates of a disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/async_file.h"

namespace tessera {

struct DiskRate {
  double read_bytes_per_s = 0;
  double written_bytes_per_s = 0;
  bool is_direct = false;  // past the page cache
  bool uses_io_uring = false;

  // Seconds the disk needs for both, one after the other.
  double seconds_for(int64_t read_bytes, int64_t written_bytes) const {
    return static_cast<double>(read_bytes) / read_bytes_per_s +
           static_cast<double>(written_bytes) / written_bytes_per_s;
  }
  // 10^9 bytes per second, half of them read and half written.
  double gb_per_s() const { return 2e-9 / seconds_for(1, 1); }
};

inline constexpr int64_t kDiskRateBytes = int64_t{1} << 30;

// Writes a scratch file in `folder` and reads it again: at most kDiskRateBytes, half of what is free, and
// what is written in `seconds`. Errors are those of AsyncFile.
DiskRate measure_disk_rate(const std::filesystem::path& folder, const AsyncFileSettings& settings = {},
                           double seconds = 0.5);

// Measures the nearest folder above `folder` that exists; nullopt if it has too little room for the file.
std::optional<DiskRate> try_disk_rate(const std::filesystem::path& folder,
                                      const AsyncFileSettings& settings = {});

}  // namespace tessera
