// The checkpoint of a run's best evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/progress.h"
#include "train/setup/run_setup.h"

namespace tessera {

// Where the run has its checkpoint of this step, or would have it.
std::filesystem::path checkpoint_folder(const RunSetup& setup, int64_t step);
// BestModel::checkpoint_folder of a checkpoint in output_dir whose best one is that of this step.
std::string folder_elsewhere(const RunSetup& setup, int64_t step);

// Collective, with no checkpoint under way: sets checkpoint_step if the best evaluation has a checkpoint.
void find_best_checkpoint(const RunSetup& setup, BestModel* best);

// The step whose checkpoint save_total_limit spares, once the one of the last step is complete; 0 = none.
inline int64_t spared_step(const Progress& progress) {
  return progress.best.step == progress.step ? progress.step : progress.best.checkpoint_step;
}

// Collective: gives the model the weights of the best checkpoint. Without one they stay, with a warning.
void load_best_model(RunSetup& setup, const Progress& progress);

}  // namespace tessera
