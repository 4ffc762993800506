#include "train/step/step_update.h"

#include "base/clock.h"
#include "base/error.h"
#include "optim/clip.h"
#include "report/run_phase.h"

namespace tessera {

void StepUpdate::begin_step(int64_t step, const Progress& progress) {
  has_begun_ = updates_in_first_run(progress);
  if (has_begun_) begin_backward_update(step, progress.last_grad_norm.value_or(0), progress);
}

bool StepUpdate::updates_in_first_run(const Progress& progress) const {
  if (!in_backward_ || clipping_.needs_norm_of_step()) return false;
  return clipping_.mode != ClipMode::kPrevious || clipping_.max_norm == 0 || progress.last_grad_norm;
}

OptimizerStep StepUpdate::optimizer_step(int64_t step, double norm, const Progress& progress) const {
  return {.step = progress.num_updates + 1,
          .learning_rate = schedule_.learning_rate(step),
          .gradient_scale = clip_factor(norm, clipping_.max_norm),
          .betas = schedule_.betas(step)};
}

ChangeHook StepUpdate::change_hook() {
  if (!saver_.is_writing()) return {};
  return [this](ElementRange elements) { saver_.before_change(elements); };
}

void StepUpdate::begin_backward_update(int64_t step, double norm, const Progress& progress) {
  const bool by_group = clipping_.mode == ClipMode::kLayer;
  parameters_.backward_update()->begin(optimizer_step(step, by_group ? 0 : norm, progress),
                                       by_group ? clipping_.max_norm : 0, change_hook());
}

void StepUpdate::finish_step(const RowLists& passes, const StepPart& first, double norm,
                             const Progress& progress, StepMetrics* metrics) {
  if (has_begun_) {
    metrics->times.optimizer_s = parameters_.backward_update()->seconds();
    return;
  }
  mark_phase(comm_, "optimizer", metrics->step);
  const int64_t step = metrics->step - 1;
  if (in_backward_) {
    begin_backward_update(step, norm, progress);
    update_in_second_run(passes, first, metrics);
    return;
  }
  const Stopwatch time;
  const double waited_before_s = comm_.waited_s();
  parameters_.update(optimizer_step(step, norm, progress), change_hook());
  // The rest of the last update took its time from this step's passes.
  metrics->times.optimizer_s =
      time.seconds() - (comm_.waited_s() - waited_before_s) + parameters_.take_update_seconds();
}

// The gradients are those of the first run, bit for bit, unless the machine makes an error.
void StepUpdate::update_in_second_run(const RowLists& passes, const StepPart& first, StepMetrics* metrics) {
  const StepPart again = runner_.run_again(passes);
  metrics->times.rows_s += again.rows_s;
  metrics->times.products_s += again.operations.products_s;
  metrics->times.attention_s += again.operations.attention_s;
  metrics->times.elementwise_s += again.operations.elementwise_s;
  metrics->times.optimizer_s = parameters_.backward_update()->seconds();
  if (again.gradient_squares == first.gradient_squares && again.loss_sum == first.loss_sum) return;
  fail(ExitCode::kNumerics,
       "step {}: computed twice, for the gradient norm and for the update, with different results (loss sums "
       "{} and {}, squared norms {} and {}): the processor or memory of this machine errs (silent data "
       "corruption); take it out, test it, and resume from a checkpoint",
       metrics->step, first.loss_sum, again.loss_sum, first.gradient_squares, again.gradient_squares);
}

}  // namespace tessera
