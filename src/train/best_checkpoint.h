// The checkpoint of a run's best evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/progress.h"
#include "train/evaluation/best_model.h"
#include "train/setup/run_setup.h"

namespace tessera {

// Where the run has its checkpoint of this step, or would have it.
std::filesystem::path checkpoint_folder(const RunSetup& setup, int64_t step);
// BestModel::checkpoint_folder of a checkpoint in output_dir whose best step is this one.
std::string folder_elsewhere(const RunSetup& setup, int64_t step);

// The best of a run's checkpoints: that of the best evaluation among those that have one, which need not be
// the best of all.
class BestCheckpoint {
 public:
  // Arguments passed by reference must outlive this.
  BestCheckpoint(RunSetup& setup, const BestModelRule& rule, const std::vector<LogEntry>& log_history)
      : setup_(setup), rule_(rule), log_history_(log_history) {}

  // Evaluations up to this step do not count.
  void begin_after(int64_t step) { first_step_ = step + 1; }

  // Collective, with no checkpoint under way: sets checkpoint_step.
  void find(BestModel* best) const;
  // The step whose checkpoint save_total_limit spares, once the last step's is complete; 0 = none.
  int64_t spared_step(const Progress& progress) const;
  // Collective: gives the model the weights of the best checkpoint. Without one they stay, with a warning.
  void load(const Progress& progress) const;

 private:
  std::optional<double> value_at(int64_t step) const;

  RunSetup& setup_;
  const BestModelRule& rule_;
  const std::vector<LogEntry>& log_history_;
  int64_t first_step_ = 1;
};

}  // namespace tessera
