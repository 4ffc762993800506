// The update of a step: after its passes, or group by group in a backward pass.
#include <utility>

#include "base/error.h"
#include "optim/clip.h"
#include "train/trainer.h"
#include "train/work_mark.h"

namespace tessera {

ChangeHook Trainer::change_hook() {
  CheckpointSaver& saver = files_->saver();
  if (!saver.is_writing()) return {};
  return [&saver](ElementRange elements) { saver.before_change(elements); };
}

OptimizerStep Trainer::optimizer_step(int64_t step, double norm) const {
  return {.step = progress_.num_updates + 1,
          .learning_rate = schedule_->learning_rate(step),
          .gradient_scale = clip_factor(norm, args_.max_grad_norm),
          .betas = schedule_->betas(step)};
}

bool Trainer::updates_in_first_run() const {
  if (!args_.optimizer_in_backward || args_.computes_norm_first()) return false;
  return args_.clip_mode != "previous" || args_.max_grad_norm == 0 || progress_.last_grad_norm;
}

void Trainer::begin_backward_update(int64_t step, double norm) {
  const bool by_group = args_.clip_mode == "layer";
  parameters_->backward_update()->begin(optimizer_step(step, by_group ? 0 : norm),
                                        by_group ? args_.max_grad_norm : 0, change_hook());
}

void Trainer::update(const RowLists& passes, StepMetrics* metrics) {
  mark_work(comm_, "optimizer", metrics->step);
  if (args_.optimizer_in_backward) {
    update_in_second_run(passes, metrics);
    return;
  }
  const Stopwatch time;
  const double waited_before_s = comm_.waited_s();
  parameters_->update(optimizer_step(metrics->step - 1, metrics->grad_norm), change_hook());
  metrics->times.optimizer_s = time.seconds() - (comm_.waited_s() - waited_before_s);
}

// The gradients are those of the first run, bit for bit, unless the machine errs.
void Trainer::update_in_second_run(const RowLists& passes, StepMetrics* metrics) {
  begin_backward_update(metrics->step - 1, metrics->grad_norm);
  const StepPart again = runner_->run_again(passes);
  metrics->times.rows_s += again.rows_s;
  metrics->times.products_s += again.operations.products_s;
  metrics->times.attention_s += again.operations.attention_s;
  metrics->times.elementwise_s += again.operations.elementwise_s;
  metrics->times.optimizer_s = parameters_->backward_update()->seconds();
  const StepPart& first = exchange_.parts[static_cast<size_t>(world().rank)];
  if (again.gradient_squares == first.gradient_squares && again.loss_sum == first.loss_sum) return;
  fail(ExitCode::kNumerics,
       "step {}: computed twice, for the gradient norm and for the update, with different results (loss sums "
       "{} and {}, squared norms {} and {}): the processor or memory of this machine errs (silent data "
       "corruption); take it out, test it, and resume from a checkpoint",
       metrics->step, first.loss_sum, again.loss_sum, first.gradient_squares, again.gradient_squares);
}

}  // namespace tessera
