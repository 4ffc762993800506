// The RunSpecs of runs that differ from a given one in what was not the user's choice: --fit and searches
// choose, a checkpoint brings settings along, a plan leaves something out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "settings/run_spec.h"

namespace tessera {

// A value of each of the settings that decide what a run keeps in memory or on a disk, when it updates, and
// what it recomputes.
struct FitCandidate {
  OptimizerForm optimizer = OptimizerForm::kAdamW;
  OffloadDevice state = OffloadDevice::kNone;
  OffloadDevice weights = OffloadDevice::kNone;
  bool updates_in_backward = false;
  ClipMode clip = ClipMode::kGlobal;
  bool recomputes = false;
  CheckpointingMode recomputed = CheckpointingMode::kFull;
  std::optional<int64_t> base_bits;  // of the weights beside adapters; nullopt: bfloat16

  bool operator==(const FitCandidate&) const = default;
};
FitCandidate candidate_of(const RunSpec& spec);
// `spec`, resolved for world_size ranks, with the candidate's settings, and `fit` as given. Error(kBadConfig)
// if other settings rule it out.
RunSpec with_candidate(const RunSpec& spec, const FitCandidate& candidate, int64_t world_size,
                       bool fit = false);

// The division of a step's rows among the ranks.
struct RowDivision {
  int64_t rows_per_device = 1;
  int64_t accumulation_steps = 1;
  int64_t step_rows = 1;
};
RunSpec with_rows(const RunSpec& spec, const RowDivision& rows);
// The division of rows and parameters that a search has found.
RunSpec with_layout(const RunSpec& spec, const RowDivision& rows, int64_t zero_stage, GatherChoice schedule,
                    bool gradient_checkpointing);

// Trains adapters (LoRA).
RunSpec with_adapters(const RunSpec& spec);
// Trains new adapters instead of the given ones.
RunSpec without_given_adapter(const RunSpec& spec);
RunSpec without_evaluation(const RunSpec& spec);

// `spec` with the settings that change the numbers of a run (the optimizer, how gradients are clipped, the
// form of the weights beside adapters) taken from `then`, the training_args.json of the run that is resumed.
// Settings given anew stay, with all that belongs to them. `origin` says where `then` is from.
RunSpec continued(const RunSpec& spec, const nlohmann::json& then, const std::string& origin);

// `data` with its documents packed in their order, as by checkpoints from before there were strategies.
DataSpec packed_in_order(const DataSpec& data);

}  // namespace tessera
