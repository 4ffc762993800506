// The sinks that a run's arguments ask for, besides the files that it always writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/world.h"
#include "report/observer.h"
#include "settings/run_settings.h"

namespace tessera {

struct SinkContext {
  const RunSpec& spec;
  std::optional<int64_t> resumed_step;
  int64_t step_rows;                // of all ranks
  const std::string& model_config;  // config.json
};

// Error(kBadConfig) for values of environment variables that the sinks cannot use.
void check_sinks(const ReportingSpec& reporting, const Environment& environment);

// `report_to` names the sinks that the trainer makes (tensorboard, csv, mlflow); a DeepSpeed file adds its
// monitors. Error(kIoError) for a folder that cannot be written. Once made, a sink that fails is a warning.
std::vector<std::unique_ptr<TrainObserver>> make_sinks(const SinkContext& context,
                                                       const Environment& environment);

}  // namespace tessera
