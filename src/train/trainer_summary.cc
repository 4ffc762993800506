// The estimates and the summary of a run.
#include <algorithm>

#include "base/divide_up.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "report/speed_hint.h"
#include "train/trainer.h"

namespace tessera {

RunEstimates Trainer::estimates() const {
  RunEstimates estimates;
  estimates.evaluation_tokens = setup_.data->num_eval_tokens();
  if (setup_.choices) estimates.evaluation_tokens += setup_.choices->num_tokens();
  estimates.saves_in_background = setup_.spec.saving.in_background;
  estimates.checkpoint_s = files_.checkpoint_estimate_s();
  estimates.model_s = files_.model_estimate_s();
  return estimates;
}

TrainSummary Trainer::summarize() const {
  TrainSummary summary;
  summary.num_steps = progress_.step;
  summary.epoch = progress_.epoch;
  summary.train_loss = progress_.mean_loss();
  summary.runtime_s = totals_.runtime_s();
  summary.num_tokens = progress_.num_input_tokens_seen;
  summary.tokens_per_second = totals_.tokens_per_second();
  summary.tflops = totals_.tflops();
  summary.mfu = setup_.peak->share_of_peak(summary.tflops);
  summary.peak = setup_.peak->best();
  summary.network = totals_.network();
  if (!setup_.spec.placement.offload_dir.empty())
    summary.disk = DiskSummary{totals_.disk(), setup_.disk_rate};
  summary.folder = setup_.spec.output_dir;
  summary.peak_resident_bytes = peak_resident_bytes();
  if (setup_.data->evals.empty()) return summary;
  // If there are several sets, the one whose loss is watched, or the first.
  const auto is_watched = [&](const EvaluationData& eval) {
    return eval.prefix + "_loss" == best_rule_.metric();
  };
  auto shown = std::ranges::find_if(setup_.data->evals, is_watched);
  if (shown == setup_.data->evals.end()) shown = setup_.data->evals.begin();
  for (const LogEntry& entry : log_.history()) {
    const std::optional<double> loss = value_of(entry, shown->prefix + "_loss");
    if (!loss || (summary.best_evaluation && summary.best_evaluation->loss <= *loss)) continue;
    summary.best_evaluation = {entry.step, *loss, shown->name};
  }
  return summary;
}

void Trainer::add_times(TrainSummary* summary) const {
  summary->times = totals_.times();
  summary->times.total_s = setup_.since_start.seconds();
  SpeedInputs inputs;
  inputs.times = summary->times;
  inputs.mfu = summary->mfu;
  inputs.num_nodes = world().num_nodes;
  inputs.world_size = world().world_size;
  const int64_t num_passes =
      divide_up(setup_.plan.micro_batches, setup_.plan.micro_batches_per_pass) * world().world_size;
  if (totals_.num_steps() > 0) inputs.pass_tokens = totals_.num_tokens() / totals_.num_steps() / num_passes;
  inputs.gradient_checkpointing =
      setup_.spec.placement.gradient_checkpointing && setup_.plan.limits.num_kept_outputs == 0;
  inputs.fits_without_checkpointing = setup_.plan.fits_without_checkpointing;
  inputs.async_save = setup_.spec.saving.in_background;
  if (summary->disk) inputs.disk = summary->disk->step;
  inputs.num_threads = setup_.pool.num_threads();
  // Fewer threads than cores are a mistake only if someone asked for them.
  inputs.num_cores = setup_.spec.machine.num_threads > 0 ? cpu_limits().num_threads() : inputs.num_threads;
  summary->hint = speed_hint(inputs);
}

}  // namespace tessera
