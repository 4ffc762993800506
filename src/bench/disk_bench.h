// Speed of what `offload_dir` is used for, against fio on the same disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "io/async_file.h"
#include "platform/thread_pool.h"

namespace tessera {

struct DiskCase {
  std::filesystem::path folder;  // for two scratch files of size_bytes at a time
  int64_t size_bytes = 0;
  AsyncFileSettings transfers;
};

// Three lines, in GB/s of all bytes moved: read and write of a whole file front to back, and update: AdamW
// with BF16 weights whose state fills the file, against half reads, half writes. Peak is fio with direct I/O,
// the same block size and queue depth or, where it is not installed, direct reads and writes of one thread.
// First an update on the disk is compared bit by bit with one in memory, which takes 1.6 times size_bytes of
// memory for at most 2^22 elements.
std::vector<BenchLine> run_disk_case(const DiskCase& c, const MeasureOptions& options, ThreadPool& pool);

}  // namespace tessera
