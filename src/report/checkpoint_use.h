#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera {

// A completed checkpoint.
struct CheckpointUse {
  int64_t step = 0;
  std::filesystem::path folder = {};
  int64_t bytes = 0;         // of all ranks
  int64_t shared_bytes = 0;  // of these: shared with files of the run
  double write_s = 0;        // from start to completion
  double stall_s = 0;        // training stall, mean over the ranks
};

}  // namespace tessera
