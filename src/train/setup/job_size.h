// How long a run that is planned will be.
#pragma once

#include <cstdint>
#include <optional>

#include "forecast/text/job_size.h"
#include "formats/huggingface/model_config.h"
#include "report/observer.h"
#include "settings/run_settings.h"

namespace tessera {

// From `num_tokens`, or from the dataset, which is read (and cached) as training would read it, or from
// max_steps; nullopt if none of them is given. `spec` must be resolved for `world_size` ranks; Reads on
// `num_threads` threads, and tells `observer` how far it is.
std::optional<JobSize> job_size(const RunSpec& spec, const ModelConfig& config, int64_t world_size,
                                std::optional<int64_t> num_tokens, int64_t num_threads,
                                TrainObserver& observer);

// A job of 10^9 tokens, to compare machines by.
JobSize assumed_job(const RunSpec& spec, const ModelConfig& config, int64_t world_size);

}  // namespace tessera
