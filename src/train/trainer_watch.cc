// What the trainer does about steps that go wrong, and about ranks that fall behind.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "train/not_finite.h"
#include "train/passes.h"
#include "train/trainer.h"

namespace tessera {

void Trainer::mark_work(const char* what) {
  comm_->position().mark(Activity::kWork, {.what = what, .number = state_.global_step + 1});
}

// Group 0 is the embedding, the last one the final norm and the head.
void Trainer::mark_layer(int64_t group, WeightUse use) {
  const int64_t num_layers = model_->config().num_hidden_layers;
  const bool is_forward = use == WeightUse::kForward;
  const char* what = group == 0           ? is_forward ? "forward, embedding" : "head and loss"
                     : group > num_layers ? "head and loss"
                     : is_forward         ? "forward"
                                          : "backward";
  comm_->position().mark(Activity::kWork, {.what = what,
                                           .number = state_.global_step + 1,
                                           .layer = group > 0 && group <= num_layers ? group - 1 : -1});
}

void Trainer::report_not_finite(const StepMetrics& metrics, bool own_loss_is_finite, const RowLists& passes) {
  std::vector<int64_t> own_rows;
  for (int64_t pass = world().rank; pass < passes.size(); pass += world().world_size) {
    own_rows.insert(own_rows.end(), passes[pass].begin(), passes[pass].end());
  }
  std::string cause;
  {
    const PatientScope patience(*comm_);
    cause = find_not_finite(*model_, *dataset_,
                            {own_rows, own_loss_is_finite, parameters_->not_finite_gradient()}, *comm_);
  }
  const std::string what = fmt::format("step {}: loss {}, gradient norm {}: not finite", metrics.step,
                                       metrics.loss, metrics.grad_norm);
  constexpr int64_t kMaxSkippedInARow = 10;
  if (args_.loss_spike_policy == "skip" && num_skipped_in_a_row_ < kMaxSkippedInARow) {
    if (is_root()) log_warning("{}; skipped: {}; the step read the {}", what, cause, name_rows(passes));
    return;
  }
  finish_checkpoint();
  fail(ExitCode::kNumerics,
       "{}, so the weights were left as they are after step {}: {}; the step read the {} (from 0); lower "
       "learning_rate or max_grad_norm, or look at these rows",
       what, metrics.step - 1, cause, name_rows(passes));
}

bool Trainer::is_to_skip(const StepMetrics& metrics, bool own_loss_is_finite, const RowLists& passes) {
  if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.grad_norm)) {
    report_not_finite(metrics, own_loss_is_finite, passes);
    ++num_skipped_in_a_row_;
    return true;
  }
  num_skipped_in_a_row_ = 0;
  const std::optional<LossSpike> spike = loss_spikes_.observe(metrics.loss, metrics.grad_norm);
  if (!spike) return false;
  const std::string what = fmt::format(
      "step {}: the {} of {:.4g} stands out: {:.4g} with a deviation of {:.4g} in the steps before",
      metrics.step, spike->what, spike->value, spike->mean, spike->deviation);
  if (args_.loss_spike_policy == "stop") {
    finish_checkpoint();
    fail(ExitCode::kNumerics,
         "{}, so the weights were left as they are after step {}; the step read the {} (from 0)", what,
         metrics.step - 1, name_rows(passes));
  }
  const bool skips = args_.loss_spike_policy == "skip";
  if (is_root()) log_warning("{}{}; the step read the {}", what, skips ? "; skipped" : "", name_rows(passes));
  return skips;
}

void Trainer::check_replay(int64_t step, int64_t sum_index) {
  int rank = 0;
  while (rank < world().world_size && comm_->summand(rank, sum_index) == 0) ++rank;
  if (rank == world().world_size) return;
  const std::string place = comm_->broadcast_text(replay_difference_, rank, {"replay check"});
  const std::string who = world().is_single()
                              ? "this machine"
                              : describe_rank(rank, comm_->store()->hosts()[static_cast<size_t>(rank)]);
  finish_checkpoint();
  fail(ExitCode::kNumerics,
       "step {}: {} computed the same pass twice with different results, first in {}: its processor or "
       "memory errs (silent data corruption), so the weights were left as they are after step {}; take the "
       "machine out, test it, and go on from a checkpoint of before the last check that found nothing",
       step + 1, who, place, step);
}

std::optional<SlowestRank> Trainer::find_slowest_rank(int64_t step, int64_t work_index,
                                                      int64_t compute_index) {
  if (!slow_ranks_) return std::nullopt;
  const auto world_size = static_cast<size_t>(world().world_size);
  step_work_.resize(world_size);
  step_compute_s_.resize(world_size);
  for (size_t rank = 0; rank < world_size; ++rank) {
    step_work_[rank] = comm_->summand(static_cast<int>(rank), work_index);
    step_compute_s_[rank] = comm_->summand(static_cast<int>(rank), compute_index);
  }
  for (const SlowRankChange& change : slow_ranks_->observe(step_work_, step_compute_s_)) {
    if (!is_root()) break;
    const std::string who =
        describe_rank(change.rank, comm_->store()->hosts()[static_cast<size_t>(change.rank)]);
    if (change.is_slow) {
      log_warning(
          "{} is slow and holds the others up: at step {} it takes {:.2f} times as long for its rows as "
          "the rank in the middle",
          who, step + 1, change.times_median);
    } else {
      log_warning("{} is no longer slow (step {})", who, step + 1);
    }
  }
  const std::span<const double> times = slow_ranks_->times_median();
  const auto slowest = std::max_element(times.begin(), times.end());
  return SlowestRank{static_cast<int>(slowest - times.begin()), *slowest};
}

}  // namespace tessera
