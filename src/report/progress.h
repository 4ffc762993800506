// The progress of a run: saved in checkpoints and snapshots, restored on resume, shown in reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "optim/schedule.h"

namespace tessera {

// The best evaluation so far (BestModelRule).
struct BestModel {
  std::string metric;  // its name and direction; "" = there is none yet
  bool greater_is_better = false;
  std::optional<double> value;  // finite; set if there is a metric
  int64_t step = 0;             // of the evaluation; 0 = none yet
  int64_t checkpoint_step = 0;  // of the newest best evaluation known to have a checkpoint; 0 = none
  int64_t num_not_better = 0;   // evaluations since then, as early stopping counts them
  // In a checkpoint: where the one of checkpoint_step is, "" = under its usual name beside this one.
  std::string checkpoint_folder = {};
};

// The values that the loss spike detector has seen, oldest first.
struct LossSpikeHistory {
  std::vector<double> losses;
  std::vector<double> grad_norms;
};

struct Progress {
  int64_t step = 0;  // completed
  double epoch = 0;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;      // Hugging Face's count: 6 per token and parameter outside the input embeddings
  double total_loss = 0;      // over num_updates
  double loss_since_log = 0;  // over losses_since_log
  int64_t losses_since_log = 0;
  int64_t num_updates = 0;  // of the optimizer: steps that were not skipped
  int64_t num_skipped_in_a_row = 0;
  std::optional<double> last_grad_norm = {};  // of the last update, which clip_mode previous clips by
  LossSpikeHistory loss_spikes = {};
  std::optional<PlateauState> plateau = {};
  BestModel best = {};

  double mean_loss() const { return num_updates > 0 ? total_loss / static_cast<double>(num_updates) : 0; }
};

}  // namespace tessera
