// A hint on how to make a run faster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/observer.h"

namespace tessera {

// Measurements of a run, and the settings that can change them.
struct SpeedInputs {
  RunTimes times;
  std::optional<double> mfu = {};
  int num_nodes = 1;
  int world_size = 1;
  int64_t pass_tokens = 0;  // mean of what goes through the model of a rank at once
  bool gradient_checkpointing = false;
  bool fits_without_checkpointing = false;
  bool async_save = true;
  DiskUse disk = {};  // mean of a step
  // Threads of a rank, and the cores it could have used.
  int64_t num_threads = 1;
  int64_t num_cores = 1;
};

// One sentence on the change that saves most of the measured time, or on what limits the run if nothing
// stands out: "products take 83 % of the time at MFU 0.61: the processor is the limit". Gains are upper
// bounds that follow from the shares. "" after too few steps.
std::string speed_hint(const SpeedInputs& inputs);

}  // namespace tessera
