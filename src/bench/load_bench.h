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
  int64_t num_threads = 1;  // per rank
  bool cold = false;        // the files are dropped from the page cache before each turn
};

// Two lines from the same turns: reading alone, into memory already allocated, as in training; and
// "_with_memory", which includes allocating it. Ranks are processes of one node, as under `tessera launch`,
// new ones in each turn. One rank reads into its own memory, several into memory they share. A turn ends when
// the last rank has opened the files, and read and checked its share of the weights. dd reads the files one
// after another with blocks of 8 MiB; its own figures count. Speeds are GB/s of the files. First all weights
// are compared with the files byte by byte.
//
// Call while the process has no other threads. Error(kBadConfig) if the weights are not BF16, if dd is
// missing, or if the page cache does not release the files.
std::vector<BenchLine> run_load_case(const std::filesystem::path& folder, const LoadCase& c,
                                     const MeasureOptions& options);

// Creates a BF16 model folder of about `size_bytes`, with layers of Llama 3.2 1B's shape and weights that are
// cheap to generate.
void write_load_bench_model(const std::filesystem::path& folder, int64_t size_bytes);

}  // namespace tessera
