#include "monitor/metrics/run_metrics.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/median.h"
#include "monitor/metrics/metric_table.h"
#include "platform/cpu.h"

namespace tessera {
namespace {

// The first phase is the whole step.
constexpr std::array<std::string_view, 9> kPhases = {"all",  "rows", "products",  "attention", "elementwise",
                                                     "wait", "disk", "optimizer", "other"};

template <typename T>
void write_value(Exposition* out, std::string_view name, const std::optional<T>& value) {
  if (!value) return;
  out->family(metric(name));
  out->sample(static_cast<double>(*value));
}

template <typename T>
void write_value(Exposition* out, std::string_view name, T value) {
  write_value(out, name, std::optional<T>(value));
}

}  // namespace

std::optional<double> clock_of_peak(const std::string& instruction_set, double flops, int64_t num_cores) {
  // Multiplications and additions of a core in a cycle. amx_bf16: one product of 16 x 16 x 32 in 16 cycles;
  // the others: two fused multiply-adds of a register, as on server cores since Skylake.
  constexpr std::pair<std::string_view, double> kPerCycle[] = {
      {"amx_bf16", 1024}, {"avx512", 64}, {"avx2", 32}};
  for (const auto& [name, per_cycle] : kPerCycle) {
    if (name == instruction_set) return flops / per_cycle / static_cast<double>(num_cores);
  }
  return std::nullopt;
}

void RunMetrics::on_plan(const RunPlan& plan) {
  const std::lock_guard lock(mutex_);
  state_.max_steps = plan.max_steps;
  if (plan.peak) {
    state_.instruction_set = plan.peak->instruction_set;
    state_.num_cores = world_size_ * plan.num_threads / cpu_limits().threads_per_core(plan.num_threads);
  }
  for (size_t i = 0; i < kMemoryKinds.size(); ++i) {
    for (const MemoryItem& item : plan.memory.items) {
      if (item.kind != kMemoryKinds[i]) continue;
      const bool is_of_all = item.scope == MemoryScope::kRank;
      state_.planned_bytes[i] += item.size_bytes * (is_of_all ? plan.memory.local_world_size : 1);
    }
  }
}

void RunMetrics::on_resume(const std::filesystem::path&, int64_t step, const std::string&) {
  const std::lock_guard lock(mutex_);
  state_.step = step;
}

void RunMetrics::on_resume_from_memory(const std::string&, int64_t step, const std::string&) {
  on_resume({}, step, {});
}

void RunMetrics::on_step(const StepMetrics& metrics) {
  const std::lock_guard lock(mutex_);
  state_.step = metrics.step;
  state_.last = metrics;
  state_.last->ranks = {};  // they do not outlive this call
  state_.ranks.assign(metrics.ranks.begin(), metrics.ranks.end());
  state_.num_tokens += metrics.num_tokens;
  if (metrics.disk) state_.disk.add(*metrics.disk);
  state_.num_skipped += metrics.skipped ? 1 : 0;
  state_.num_spikes += metrics.loss_spike ? 1 : 0;
  state_.num_not_finite += std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm) ? 0 : 1;
  static_assert(kPhases.size() == 1 + std::size(kStepTimes));
  state_.phases[0].observe(metrics.step_time_s);
  for (size_t i = 1; i < kPhases.size(); ++i)
    state_.phases[i].observe(metrics.times.*kStepTimes[i - 1].seconds);
}

void RunMetrics::on_evaluation(const std::string& set, const EvalResult& result) {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(state_.eval_losses, set, [](const auto& loss) { return loss.first; });
  if (known == state_.eval_losses.end()) {
    state_.eval_losses.emplace_back(set, result.loss);
  } else {
    known->second = result.loss;
  }
}

void RunMetrics::on_checkpoint(const CheckpointUse& checkpoint) {
  const std::lock_guard lock(mutex_);
  state_.checkpoint = checkpoint;
  state_.checkpoint_time = Clock::now();
  ++state_.num_checkpoints;
}

void RunMetrics::on_checkpoint_failed(const std::filesystem::path&, const std::string&) {
  const std::lock_guard lock(mutex_);
  ++state_.num_failed_checkpoints;
}

void RunMetrics::on_warning(const std::string&) {
  const std::lock_guard lock(mutex_);
  ++state_.num_warnings;
}

void RunMetrics::write(Exposition* out) const {
  const State state = [this] {
    const std::lock_guard lock(mutex_);
    return state_;
  }();
  if (state.last) {
    const StepMetrics& last = *state.last;
    write_value(out, "tessera_train_loss", last.loss);
    write_value(out, "tessera_train_grad_norm", last.grad_norm);
    write_value(out, "tessera_train_learning_rate", last.learning_rate);
    write_value(out, "tessera_train_tokens_per_second", last.tokens_per_second);
    write_value(out, "tessera_train_epoch", last.epoch);
    write_value(out, "tessera_eta_seconds", last.eta_s);
  }
  write_value(out, "tessera_train_step", state.step);
  write_value(out, "tessera_train_max_steps", state.max_steps);
  if (!state.eval_losses.empty()) out->family(metric("tessera_eval_loss"));
  for (const auto& [set, loss] : state.eval_losses) {
    if (set.empty()) {
      out->sample(loss);
    } else {
      out->sample(loss, {{"set", set}});
    }
  }
  write_value(out, "tessera_tokens_total", state.num_tokens);
  write_value(out, "tessera_skipped_steps_total", state.num_skipped);
  write_value(out, "tessera_loss_spikes_total", state.num_spikes);
  write_value(out, "tessera_nonfinite_steps_total", state.num_not_finite);
  write_value(out, "tessera_log_warnings_total", state.num_warnings);
  write_speed(state, out);
  write_ranks(state, out);
  write_checkpoints(state, out);
  write_disk(state, out);
  if (!state.max_steps) return;
  out->family(metric("tessera_memory_planned_bytes"));
  for (size_t i = 0; i < kMemoryKinds.size(); ++i) {
    out->sample(static_cast<double>(state.planned_bytes[i]), {{"kind", memory_kind_name(kMemoryKinds[i])}});
  }
}

void RunMetrics::write_speed(const State& state, Exposition* out) const {
  out->family(metric("tessera_step_seconds"));
  for (size_t i = 0; i < kPhases.size(); ++i) out->histogram(state.phases[i], {{"phase", kPhases[i]}});
  if (!state.last) return;
  write_value(out, "tessera_flops", state.last->tflops * 1e12);
  write_value(out, "tessera_mfu_ratio", state.last->mfu);
  if (!state.last->peak) return;
  const double peak = state.last->peak->tflops * 1e12;
  write_value(out, "tessera_peak_flops", peak);
  write_value(out, "tessera_clock_hertz", clock_of_peak(state.instruction_set, peak, state.num_cores));
}

void RunMetrics::write_ranks(const State& state, Exposition* out) const {
  if (state.ranks.empty()) return;
  std::vector<double> compute_s;
  for (const RankStep& rank : state.ranks) compute_s.push_back(rank.compute_s);
  const double middle = median(compute_s);
  const auto write_by_rank = [&](std::string_view name, const auto& seconds_of) {
    out->family(metric(name));
    for (size_t rank = 0; rank < state.ranks.size(); ++rank) {
      out->sample(seconds_of(state.ranks[rank]), {{"rank", std::to_string(rank)}});
    }
  };
  write_by_rank("tessera_rank_lag_seconds", [&](const RankStep& rank) { return rank.compute_s - middle; });
  write_by_rank("tessera_rank_compute_seconds", [](const RankStep& rank) { return rank.compute_s; });
  write_by_rank("tessera_rank_wait_seconds", [](const RankStep& rank) { return rank.wait_s; });
}

void RunMetrics::write_disk(const State& state, Exposition* out) const {
  if (!state.last || !state.last->disk) return;
  out->family(metric("tessera_offload_bytes_total"));
  out->sample(static_cast<double>(state.disk.read_bytes), {{"direction", "read"}});
  out->sample(static_cast<double>(state.disk.written_bytes), {{"direction", "written"}});
  out->family(metric("tessera_offload_wait_seconds_total"));
  out->sample(state.disk.state_wait_s, {{"kind", "state"}});
  out->sample(state.disk.weights_wait_s, {{"kind", "weights"}});
  out->sample(state.disk.inputs_wait_s, {{"kind", "inputs"}});
}

void RunMetrics::write_checkpoints(const State& state, Exposition* out) const {
  const double age_s = std::chrono::duration<double>(Clock::now() - state.checkpoint_time).count();
  write_value(out, "tessera_checkpoint_age_seconds", age_s);
  write_value(out, "tessera_checkpoints_total", state.num_checkpoints);
  write_value(out, "tessera_checkpoint_failures_total", state.num_failed_checkpoints);
  if (!state.checkpoint) return;
  write_value(out, "tessera_checkpoint_bytes", state.checkpoint->bytes);
  out->family(metric("tessera_checkpoint_seconds"));
  out->sample(state.checkpoint->write_s, {{"phase", "write"}});
  out->sample(state.checkpoint->stall_s, {{"phase", "stall"}});
}

}  // namespace tessera
