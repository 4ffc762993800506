// Traffic between memory and a run's files in offload_dir.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "io/disk_rate.h"

namespace tessera {

// Traffic of a rank in a step, with concurrent reads of a checkpoint, and the rank's wait for it.
struct DiskUse {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  double state_wait_s = 0;    // for the optimizer's state
  double weights_wait_s = 0;  // for weights of layers
  double inputs_wait_s = 0;   // for inputs of layers

  double wait_s() const { return state_wait_s + weights_wait_s + inputs_wait_s; }

  // *this += factor * more
  void add(const DiskUse& more, double factor = 1) {
    read_bytes += std::llround(factor * static_cast<double>(more.read_bytes));
    written_bytes += std::llround(factor * static_cast<double>(more.written_bytes));
    state_wait_s += factor * more.state_wait_s;
    weights_wait_s += factor * more.weights_wait_s;
    inputs_wait_s += factor * more.inputs_wait_s;
  }
};

// The steps of a run and the disk they used.
struct DiskSummary {
  DiskUse step;                  // mean, of a rank
  std::optional<DiskRate> rate;  // of the disk, measured at the start
};

}  // namespace tessera
