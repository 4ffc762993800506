#include "train/step/step_guard.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "plan/passes.h"
#include "train/guards/loss_spike.h"
#include "train/guards/not_finite.h"
#include "train/guards/slow_ranks.h"

namespace tessera {
namespace {

using Action = GuardVerdict::Action;

std::string rank_and_host(Communicator& comm, int rank) {
  if (comm.world().is_single()) return "this machine";
  return describe_rank(rank, comm.store()->hosts()[static_cast<size_t>(rank)]);
}

// Warns about ranks that hold the others up.
class SlowRankGuard : public StepGuard {
 public:
  explicit SlowRankGuard(Communicator& comm)
      : comm_(comm),
        detector_(comm.world().world_size, SlowRankOptions{}),
        flops_(static_cast<size_t>(comm.world().world_size)),
        compute_s_(flops_.size()) {}

  GuardVerdict check(const CheckedStep& step) override {
    for (size_t rank = 0; rank < flops_.size(); ++rank) {
      flops_[rank] = step.parts[rank].flops;
      compute_s_[rank] = step.parts[rank].compute_s;
    }
    for (const SlowRankChange& change : detector_.observe(flops_, compute_s_)) {
      if (comm_.world().rank == 0) report(change, step.metrics->step);
    }
    const std::span<const double> times = detector_.times_median();
    const auto slowest = std::ranges::max_element(times);
    step.metrics->slowest_rank = SlowestRank{static_cast<int>(slowest - times.begin()), *slowest};
    return {};
  }

 private:
  void report(const SlowRankChange& change, int64_t step) const {
    const std::string who = rank_and_host(comm_, change.rank);
    if (change.is_slow) {
      log_warning(
          "{} is slow and holds the others up: at step {} it takes {:.2f} times as long for its rows as "
          "the rank in the middle",
          who, step, change.times_median);
    } else {
      log_warning("{} is no longer slow (step {})", who, step);
    }
  }

  Communicator& comm_;
  SlowRankDetector detector_;
  std::vector<double> flops_, compute_s_;  // by rank
};

// Ends the run if a pass that was computed twice gave two results (replay_check.h).
class ReplayGuard : public StepGuard {
 public:
  explicit ReplayGuard(Communicator& comm) : comm_(comm) {}

  GuardVerdict check(const CheckedStep& step) override {
    const auto found = std::ranges::find_if(step.parts, &StepPart::replay_differs);
    if (found == step.parts.end()) return {};
    const auto rank = static_cast<int>(found - step.parts.begin());
    const std::string place = comm_.broadcast_text(*step.replay_difference, rank, {"replay check"});
    const std::string who = rank_and_host(comm_, rank);
    return {Action::kStop,
            fmt::format("step {}: {} computed the same pass twice with different results, first in {}: its "
                        "processor or memory errs (silent data corruption), so the weights were left as they "
                        "are after step {}; take the machine out, test it, and resume from a checkpoint that "
                        "is older than the last check without a finding",
                        step.metrics->step, who, place, step.metrics->step - 1)};
  }

 private:
  Communicator& comm_;
};

// Ends the run, or skips the update, if loss or gradient norm is not finite.
class NotFiniteGuard : public StepGuard {
 public:
  NotFiniteGuard(bool skips, TrainableModel& model, const Dataset& dataset, ParameterStore& parameters,
                 Communicator& comm, ContextRank* context)
      : skips_(skips),
        model_(model),
        dataset_(dataset),
        parameters_(parameters),
        comm_(comm),
        context_(context) {}

  GuardVerdict check(const CheckedStep& step) override {
    const StepMetrics& metrics = *step.metrics;
    if (std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm)) {
      num_skipped_in_a_row_ = 0;
      return {};
    }
    const std::string cause = find_cause(step);
    const std::string what = fmt::format("step {}: loss {}, gradient norm {}: not finite", metrics.step,
                                         metrics.loss, metrics.grad_norm);
    constexpr int64_t kMaxSkippedInARow = 10;
    if (skips_ && num_skipped_in_a_row_ < kMaxSkippedInARow) {
      ++num_skipped_in_a_row_;
      if (comm_.world().rank == 0) {
        log_warning("{}; skipped: {}; the step read the {}", what, cause, name_rows(*step.passes));
      }
      return {Action::kSkip};
    }
    return {Action::kStop,
            fmt::format("{}, {}: {}; the step read the {} (from 0); lower learning_rate or max_grad_norm, or "
                        "look at these rows",
                        what, what_became_of_weights(metrics.step - 1), cause, name_rows(*step.passes))};
  }

  void save(Progress* progress) const override { progress->num_skipped_in_a_row = num_skipped_in_a_row_; }
  void restore(const Progress& progress) override { num_skipped_in_a_row_ = progress.num_skipped_in_a_row; }

 private:
  std::string what_became_of_weights(int64_t last_step) {
    BackwardUpdate* update = parameters_.backward_update();
    if (update == nullptr || !update->has_begun()) {
      return fmt::format("so the weights were left as they are after step {}", last_step);
    }
    return "when the layers above were already updated: resume from a checkpoint";
  }

  std::string find_cause(const CheckedStep& step) {
    const World& world = comm_.world();
    std::vector<int64_t> own_rows;
    const int64_t team_size = size_of_team(context_);
    for (int64_t pass = world.rank / team_size; pass < step.passes->size();
         pass += world.world_size / team_size) {
      const std::span<const int64_t> rows = (*step.passes)[pass];
      own_rows.insert(own_rows.end(), rows.begin(), rows.end());
    }
    const bool own_loss_is_finite = std::isfinite(step.parts[static_cast<size_t>(world.rank)].loss_sum);
    const PatientScope patience(comm_);
    return find_not_finite(
        model_, dataset_,
        {step.metrics->step - 1, own_rows, own_loss_is_finite, parameters_.not_finite_gradient()}, comm_,
        context_);
  }

  bool skips_;
  TrainableModel& model_;
  const Dataset& dataset_;
  ParameterStore& parameters_;
  Communicator& comm_;
  ContextRank* context_;
  int64_t num_skipped_in_a_row_ = 0;
};

// loss_spike_policy for steps whose loss or gradient norm stands out (loss_spike.h).
class LossSpikeGuard : public StepGuard {
 public:
  LossSpikeGuard(LossSpikePolicy policy, const LossSpikeOptions& options, bool reports)
      : policy_(policy), reports_(reports), detector_(options) {}

  GuardVerdict check(const CheckedStep& step) override {
    const StepMetrics& metrics = *step.metrics;
    if (metrics.num_target_tokens == 0) return {};  // a loss of 0 says nothing about the others
    const std::optional<LossSpike> spike = detector_.observe(metrics.loss, metrics.grad_norm);
    if (!spike) return {};
    step.metrics->loss_spike = true;
    const std::string what = fmt::format(
        "step {}: the {} of {:.4g} stands out: {:.4g} with a deviation of {:.4g} in the steps before",
        metrics.step, spike->what, spike->value, spike->mean, spike->deviation);
    if (policy_ == LossSpikePolicy::kStop) {
      return {
          Action::kStop,
          fmt::format("{}, so the weights were left as they are after step {}; the step read the {} (from 0)",
                      what, metrics.step - 1, name_rows(*step.passes))};
    }
    const bool skips = policy_ == LossSpikePolicy::kSkip;
    if (reports_) {
      log_warning("{}{}; the step read the {}", what, skips ? "; skipped" : "", name_rows(*step.passes));
    }
    return {skips ? Action::kSkip : Action::kUpdate};
  }

  void save(Progress* progress) const override { progress->loss_spikes = detector_.history(); }
  void restore(const Progress& progress) override { detector_.restore(progress.loss_spikes); }

 private:
  LossSpikePolicy policy_;
  bool reports_;
  LossSpikeDetector detector_;
};

}  // namespace

std::vector<std::unique_ptr<StepGuard>> make_step_guards(const GuardSpec& spec, TrainableModel& model,
                                                         const Dataset& dataset, ParameterStore& parameters,
                                                         Communicator& comm, ContextRank* context) {
  std::vector<std::unique_ptr<StepGuard>> guards;
  if (!comm.world().is_single()) guards.push_back(std::make_unique<SlowRankGuard>(comm));
  if (spec.replay_check_steps > 0) guards.push_back(std::make_unique<ReplayGuard>(comm));
  guards.push_back(std::make_unique<NotFiniteGuard>(spec.loss_spike_policy == LossSpikePolicy::kSkip, model,
                                                    dataset, parameters, comm, context));
  guards.push_back(std::make_unique<LossSpikeGuard>(
      spec.loss_spike_policy, LossSpikeOptions{spec.loss_spike_window, spec.loss_spike_sigmas},
      comm.world().rank == 0));
  return guards;
}

}  // namespace tessera
