// Speed of loading a model's files into memory, against dd reading the same files in turn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"

namespace tessera {

struct LoadCase {
  int num_ranks = 1;
  int64_t num_threads = 1;  // of each rank
  bool cold = false;        // the files are dropped from the page cache before each turn
};

// Two lines of the same turns: the reading alone, into memory that is there, as in training; and
// "_with_memory", which includes allocating it. Ranks are processes of one node, as under `tessera launch`,
// new ones in each turn. One rank reads into memory of its own, several into memory that they share. A turn
// ends when the last rank has opened the files, and read and checked its share of the weights. dd reads the
// files one after another with blocks of 8 MiB; its own figures count. Speeds are GB/s of the files. First
// all weights are compared with the files byte by byte.
//
// To be called while the process has no other threads. Error(kBadConfig) for weights that are not BF16, where
// there is no dd, and where the page cache does not give the files up.
std::vector<BenchLine> run_load_case(const std::filesystem::path& folder, const LoadCase& c,
                                     const MeasureOptions& options);

// Makes a model folder of about `size_bytes` in BF16 in layers of Llama 3.2 1B's shape, with weights that
// take no time to draw.
void write_load_bench_model(const std::filesystem::path& folder, int64_t size_bytes);

}  // namespace tessera
