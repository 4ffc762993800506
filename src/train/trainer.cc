// The loop of a run and its single step. Preparation is in trainer_setup.cc, resuming in trainer_resume.cc,
// what is done about steps that go wrong in trainer_watch.cc, reports and files in trainer_output.cc.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "model/flops.h"
#include "train/passes.h"

namespace tessera {

double clip_factor(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

TrainSummary Trainer::run(const std::function<int()>& stop_signal) {
  TESSERA_CHECK(!output_, "a trainer runs once");
  stop_signal_ = stop_signal;
  if (is_finished_already()) {
    if (is_root())
      log_info("nothing is left to do: {} has the model of step {}", args_.output_dir, state_.global_step);
    return summarize();
  }
  open_output();
  run_time_ = Stopwatch();
  comm_->rail().wait_for_all();  // what loading has begun
  network_meter_.start();
  watch_for_signal();
  if (begins_with_evaluation()) run_evaluation();
  while (state_.global_step < state_.max_steps && !stop_wanted()) {
    measure_peak_again();
    const std::optional<StepMetrics> metrics = train_step(state_.global_step);
    if (!metrics) break;
    report_checkpoint();
    account(*metrics);
    if (state_.global_step == first_step_ + 1) measure_memory();
    const StepActions due = actions_->after(state_.global_step);
    if (due.log) log_training();
    if (due.evaluate) run_evaluation();
    if (due.save) save_checkpoint();
    if (due.snapshot) take_snapshot();
  }
  return finish_run();
}

const RowLists& Trainer::passes_of_step(int64_t step) {
  if (world().is_single()) {
    batch_plan_->rows_of_step(step, &passes_);
    passes_.merge(run_plan_.micro_batches_per_pass);
    return passes_;
  }
  batch_plan_->rows_of_step(step, &micro_batches_);
  dealer_->deal(
      micro_batches_, [this](int64_t row) { return dataset_->row_length(row); }, &passes_);
  return passes_;
}

// What the ranks add up after a step.
struct Trainer::StepSums {
  double loss = 0;
  double gradient_squares = 0;
  double num_tokens = 0;
  double flops = 0;
  double given_up = 0;    // ranks that did not compute all
  double interrupts = 0;  // ranks that received SIGINT
  double terminations = 0;
  double sent_bytes = 0;
  double received_bytes = 0;
  double busy_s = 0;
  double wait_s = 0;
  double compute_s = 0;           // of the passes, without waiting for others
  double replay_differences = 0;  // ranks that found one
  double peak_tflops = 0;         // at best until now
  double peak_is_due = 0;         // says rank 0
  CheckpointShare checkpoint;

  void add(const NetworkCounters& network) {
    sent_bytes += static_cast<double>(network.sent_bytes);
    received_bytes += static_cast<double>(network.received_bytes);
    busy_s += network.busy_s;
    wait_s += network.wait_s;
  }
  NetworkCounters network() const {
    return {std::llround(sent_bytes), std::llround(received_bytes), busy_s, wait_s};
  }
  std::span<double> values() { return {&loss, kNumValues}; }
  static constexpr size_t kNumValues = 19;
  int64_t index_of(double StepSums::*value) const { return &(this->*value) - &loss; }
};

void Trainer::run_pass(const RowLists& passes, int64_t pass, bool is_last, float grad_scale, StepSums* sums) {
  const WeightUpdate update = parameters_->begin_pass(pass == 0, is_last);
  const std::span<const int64_t> rows = passes[pass * world().world_size + world().rank];
  if (rows.empty() || given_up_) {
    model_->take_part_in_forward_backward(update.mode);
  } else {
    make_packed_batch(*dataset_, rows, &batch_);
    const auto label_smoothing = static_cast<float>(args_.label_smoothing_factor);
    sums->loss += model_->forward_backward(batch_, grad_scale, label_smoothing, update).loss_sum;
    sums->num_tokens += static_cast<double>(batch_.num_tokens());
    sums->flops += model_flops(model_->config(), batch_.cu_seqlens, batch_.num_targets).forward_backward();
  }
  parameters_->end_pass();
}

void Trainer::rehearse(const RowLists& passes, float grad_scale) {
  const Stopwatch time;
  replay_.emplace(*model_, *pool_);
  StepSums nothing;
  run_pass(passes, 0, /*is_last=*/false, grad_scale, &nothing);
  replay_->repeat();
  rehearsal_s_ = time.seconds();
}

bool Trainer::run_passes(const RowLists& passes, float grad_scale, StepSums* sums) {
  const int64_t num_passes = passes.size() / world().world_size;
  const int64_t every = args_.replay_check_steps;
  rehearsal_s_ = 0;
  in_passes_ = true;
  if (every > 0 && (state_.global_step + 1) % every == 0) rehearse(passes, grad_scale);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    if (pass > 0 && give_up_together(pass)) break;
    run_pass(passes, pass, pass + 1 == num_passes, grad_scale, sums);
    if (replay_ && !given_up_) replay_difference_ = replay_->difference();
    replay_.reset();
  }
  in_passes_ = false;
  return agreed_signal_ == 0;
}

// loss = sum of token losses / targets of the whole step, so that passes count by their targets.
std::optional<StepMetrics> Trainer::train_step(int64_t step) {
  const Stopwatch step_time;
  since_step_began_ = step_time;
  mark_work("choosing rows");
  const RowLists& passes = passes_of_step(step);
  const int64_t num_targets = count_targets(passes);
  const float grad_scale = 1.0f / static_cast<float>(num_targets);

  StepSums sums;
  static_assert(sizeof(sums) == StepSums::kNumValues * sizeof(double));
  const double waited_before_s = comm_->waited_s();
  if (!run_passes(passes, grad_scale, &sums)) return std::nullopt;
  sums.replay_differences = replay_difference_.empty() ? 0 : 1;
  mark_work("adding up the step");
  sums.gradient_squares = parameters_->gradient_squares();
  sums.compute_s = step_time.seconds() - (comm_->waited_s() - waited_before_s);
  const bool own_loss_is_finite = std::isfinite(sums.loss);
  const int signal = received_signal();
  sums.given_up = given_up_;
  sums.interrupts = signal == SIGINT;
  sums.terminations = signal == SIGTERM;
  sums.checkpoint = saver_->share();
  sums.peak_tflops = peak_ ? peak_->best_tflops() : 0;
  sums.peak_is_due = is_root() && peak_ && peak_->is_due();
  {
    const NetworkMeterPause pause(network_meter_);
    sums.add(network_meter_.take());
    comm_->all_reduce_sum(sums.values(), {"loss and gradient norm"});
  }
  if (sums.interrupts > 0) agreed_signal_ = SIGINT;
  if (sums.terminations > 0) agreed_signal_ = SIGTERM;
  peak_tflops_ = sums.peak_tflops;
  peak_is_due_ = sums.peak_is_due > 0;
  if (sums.given_up > 0) {
    saver_->take_sums(sums.checkpoint);
    return std::nullopt;
  }
  StepMetrics metrics;
  metrics.step = step + 1;
  metrics.epoch = batch_plan_->epoch_after(step + 1);
  metrics.loss = sums.loss / static_cast<double>(num_targets);
  metrics.grad_norm = std::abs(std::sqrt(sums.gradient_squares));  // "nan", never "-nan"
  metrics.learning_rate = schedule_->learning_rate(step);
  metrics.num_tokens = std::llround(sums.num_tokens);
  metrics.num_target_tokens = num_targets;
  metrics.network = network_use(sums.network());
  metrics.slowest_rank =
      find_slowest_rank(step, sums.index_of(&StepSums::flops), sums.index_of(&StepSums::compute_s));
  pass_s_ = sums.compute_s / static_cast<double>(passes.size());
  check_replay(step, sums.index_of(&StepSums::replay_differences));
  saver_->take_sums(sums.checkpoint);
  if (rehearsal_s_ > 0) metrics.replay_check_s = rehearsal_s_;
  metrics.skipped = is_to_skip(metrics, own_loss_is_finite, passes);
  if (!metrics.skipped) update(metrics);

  metrics.step_time_s = step_time.seconds();
  metrics.tokens_per_second = sums.num_tokens / metrics.step_time_s;
  metrics.tflops = sums.flops * 1e-12 / metrics.step_time_s;
  metrics.mfu = share_of_peak(metrics.tflops);
  metrics.peak = best_peak();
  return metrics;
}

void Trainer::update(const StepMetrics& metrics) {
  mark_work("optimizer");
  if (const std::optional<AdamBetas> betas = schedule_->betas(metrics.step - 1)) {
    parameters_->set_betas(betas->beta1, betas->beta2);
  }
  ChangeHook before_change;
  if (saver_->is_writing()) {
    before_change = [this](ElementRange elements) { saver_->before_change(elements); };
  }
  parameters_->update(++num_updates_, metrics.learning_rate,
                      clip_factor(metrics.grad_norm, args_.max_grad_norm), before_change);
}

std::optional<NetworkUse> Trainer::network_use(const NetworkCounters& sums) const {
  if (world().num_nodes == 1) return std::nullopt;
  NetworkUse use;
  use.sent_bytes = sums.sent_bytes;
  use.received_bytes = sums.received_bytes;
  use.time_s = sums.busy_s / world().world_size;
  use.hidden = sums.busy_s > 0 ? std::max(0.0, 1 - sums.wait_s / sums.busy_s) : 1;
  return use;
}

// Between steps, and on all ranks at the same time: no step waits for a rank that measures.
void Trainer::measure_peak_again() {
  if (!peak_is_due_) return;
  mark_work("measuring the arithmetic peak");
  peak_->measure_again();
}

std::optional<BestPeak> Trainer::best_peak() const {
  if (!peak_) return std::nullopt;
  return BestPeak{peak_tflops_, peak_->num_measurements()};
}

std::optional<double> Trainer::share_of_peak(double tflops) const {
  if (!peak_) return std::nullopt;
  return tflops / peak_tflops_;
}

int64_t Trainer::count_targets(const RowLists& passes) const {
  int64_t num_targets = 0;
  for (const int64_t row : passes.all_rows()) num_targets += dataset_->row_num_targets(row);
  if (num_targets == 0) {
    fail(ExitCode::kBadData,
         "the {} (from 0) make up one step and have no token to predict: all their labels are ignored",
         name_rows(passes));
  }
  return num_targets;
}

}  // namespace tessera
