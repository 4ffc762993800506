// Speed of writing and loading checkpoints against what `dd` would reach with the same bytes on the same
// disk: one file, written or read from front to back in blocks of 4 MiB by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "formats/huggingface/model_config.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

struct CheckpointCase {
  ModelConfig config;
  DType model_dtype = DType::kBF16;
  int num_ranks = 1;             // ranks that write concurrently
  std::filesystem::path folder;  // for the files; empty again afterwards
};

// Writes and loads one checkpoint and compares every bit, then measures. Three lines: write, from the first
// byte until the commit, against pwrite and fsync (dd conv=fsync), compared with direct writes (dd
// oflag=direct); load of files not in the page cache, against direct reads (dd iflag=direct), compared with
// reads through the cache (dd); load of files in the page cache, against reads of them (dd). Takes 24 bytes
// of memory per parameter.
std::vector<BenchLine> run_checkpoint_case(const CheckpointCase& c, const MeasureOptions& options,
                                           ThreadPool& pool);

}  // namespace tessera
