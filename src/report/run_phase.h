// Marks what this rank is doing, for reports on ranks that stall.
#pragma once

#include <array>
#include <cstdint>

#include "comm/communicator.h"

namespace tessera {

// Work before the first step, between steps and after the last one. It may take long and report nothing:
// writing a large model to a slow disk.
enum class RunPhase {
  kPreparing,
  kReadingDataset,
  kLoadingWeights,
  kEvaluation,
  kWaitingForCallbacks,
  kBeginningCheckpoint,
  kFinishingCheckpoint,
  kWritingModel,
  kLoadingBestModel,
  kEndOfRun,
};

// In the order of RunPhase.
inline constexpr std::array<const char*, 10> kRunPhaseNames = {"preparing",
                                                               "reading the dataset",
                                                               "loading the weights",
                                                               "evaluation",
                                                               "waiting for callbacks",
                                                               "beginning a checkpoint",
                                                               "finishing a checkpoint",
                                                               "writing the model",
                                                               "loading the best model",
                                                               "the end of the run"};
static_assert(kRunPhaseNames.size() == static_cast<size_t>(RunPhase::kEndOfRun) + 1);

// `step` counts from 1.
inline void mark_phase(Communicator& comm, const char* what, int64_t step) {
  comm.position().mark(Activity::kWork, {.what = what, .number = step});
}
inline void mark_phase(Communicator& comm, RunPhase phase, int64_t step) {
  mark_phase(comm, kRunPhaseNames[static_cast<size_t>(phase)], step);
}

}  // namespace tessera
