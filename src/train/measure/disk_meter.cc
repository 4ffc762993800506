#include "train/measure/disk_meter.h"

#include <utility>

namespace tessera {

DiskUse DiskMeter::take() {
  const auto [state, weights] = parameters_->transfers();
  const AsyncFileStatistics frozen = frozen_ ? frozen_->file_statistics() : AsyncFileStatistics(),
                            inputs = model_->input_file_statistics();
  AsyncFileStatistics files;
  for (const AsyncFileStatistics& each : {state, weights, frozen, inputs}) files += each;
  const DiskUse all = {.read_bytes = files.bytes_read,
                       .written_bytes = files.bytes_written,
                       .state_wait_s = state.waited_seconds,
                       .weights_wait_s = weights.waited_seconds + frozen.waited_seconds,
                       .inputs_wait_s = inputs.waited_seconds};
  DiskUse since = all;
  since.add(std::exchange(taken_, all), -1);
  return since;
}

}  // namespace tessera
