// Marks what this rank is doing, for reports on ranks that stall.
#pragma once

#include <array>
#include <cstdint>

#include "comm/communicator.h"

namespace tessera {

// Work before the first step, between steps and after the last one. It may take long and report nothing:
// writing a large model to a slow disk.
enum class OtherWork {
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

// In the order of OtherWork.
inline constexpr std::array<const char*, 10> kOtherWorkNames = {"preparing",
                                                                "reading the dataset",
                                                                "loading the weights",
                                                                "evaluation",
                                                                "waiting for callbacks",
                                                                "beginning a checkpoint",
                                                                "finishing a checkpoint",
                                                                "writing the model",
                                                                "loading the best model",
                                                                "the end of the run"};
static_assert(kOtherWorkNames.size() == static_cast<size_t>(OtherWork::kEndOfRun) + 1);

// `step` counts from 1.
inline void mark_work(Communicator& comm, const char* what, int64_t step) {
  comm.position().mark(Activity::kWork, {.what = what, .number = step});
}
inline void mark_work(Communicator& comm, OtherWork work, int64_t step) {
  mark_work(comm, kOtherWorkNames[static_cast<size_t>(work)], step);
}

}  // namespace tessera
