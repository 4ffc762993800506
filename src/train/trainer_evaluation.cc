// The evaluations of a run.
#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "data/rows/length_order.h"
#include "report/log_entries.h"
#include "report/run_phase.h"
#include "train/evaluation/evaluate.h"
#include "train/trainer.h"

namespace tessera {
namespace {

EvalOptions eval_options_of(const RunSetup& setup, const Dataset& eval, int64_t max_rows,
                            int64_t max_tokens) {
  const RunSpec& spec = setup.spec;
  const DataRecord& data = setup.record.data;
  EvalOptions options = {.max_rows = max_rows, .max_tokens = max_tokens};
  // A run with global_batch_size evaluates as on one rank; a resumed run keeps the batches it began with.
  options.num_ranks = data.global_batch_size ? 1 : data.world_size;
  options.drop_last = spec.data.drop_last;
  options.averages_tokens = spec.objective.average_tokens_across_devices;
  options.label_smoothing = static_cast<float>(spec.objective.label_smoothing);
  if (spec.data.sampling_strategy == SamplingStrategy::kGroupByLength) {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < eval.num_rows(); ++row) lengths.push_back(eval.num_input_ids(row));
    std::mt19937 generator(static_cast<uint32_t>(spec.shuffle_seed()));
    options.order = length_grouped_order(lengths, max_rows, &generator);
  }
  return options;
}

}  // namespace

// A signal may have cut short the evaluation of the step that the run resumes from.
bool Trainer::begins_with_evaluation() const {
  if (!*setup_.resume) return setup_.spec.evaluation.on_start;
  return setup_.actions->after(progress_.step).evaluate && !has_evaluation(log_.history(), progress_.step);
}

bool Trainer::run_evaluation() {
  const AddedTime added(&totals_.times().evaluation_s);
  const Stopwatch time;
  const NetworkMeterPause pause(network_meter_);
  synchronize();
  stop_.enter(StopAgreement::Phase::kEvaluation);
  mark_phase(setup_.comm, RunPhase::kEvaluation, progress_.step + 1);
  std::vector<EvalResult> results;
  std::vector<LogEntry> entries;
  const bool is_complete = evaluate_sets(&results, &entries);
  stop_.enter(StopAgreement::Phase::kOther);
  if (!is_complete) return false;
  LogEntry all;
  for (LogEntry& entry : entries) {
    all.values.insert(all.values.end(), entry.values.begin(), entry.values.end());
    log_.add(std::move(entry), progress_);
  }
  for (size_t i = 0; i < results.size(); ++i)
    setup_.observers.on_evaluation(setup_.data->evals[i].name, results[i]);
  ++totals_.times().num_evaluations;
  if (clock_) clock_->add(RunPart::kEvaluation, time.seconds());
  // In Hugging Face's Trainer, evaluations before the first step do not count.
  if (progress_.step == 0) return false;
  const std::optional<double> watched = value_of(all, best_rule_.metric());
  setup_.schedule->observe_metric(watched.value_or(results.front().loss), best_rule_.greater_is_better());
  return best_rule_.observe(all, progress_.step, &progress_.best);
}

bool Trainer::evaluate_sets(std::vector<EvalResult>* results, std::vector<LogEntry>* entries) {
  const int64_t max_rows = setup_.spec.evaluation.rows_per_device;
  const int64_t max_tokens = setup_.plan.limits.max_tokens * setup_.spec.sharding.context_parallel_size;
  const auto all = static_cast<double>(setup_.data->num_eval_tokens());
  double before = 0, share = 1;  // of all tokens
  const auto progress = [&](double fraction) {
    setup_.observers.on_evaluation_progress(before + share * fraction);
    return !stop_.stop_evaluation();
  };
  for (const EvaluationData& eval : setup_.data->evals) {
    share = static_cast<double>(eval.rows.num_tokens()) / all;
    results->push_back(evaluate(*setup_.model, eval.rows,
                                eval_options_of(setup_, eval.rows, max_rows, max_tokens), setup_.comm,
                                progress, setup_.context_rank()));
    if (results->back().stopped) return false;
    entries->push_back(evaluation_entry(eval.prefix, results->back()));
    before += share;
  }
  if (!setup_.choices) return true;
  before = 0, share = 1;
  const ChoiceResult choices = setup_.choices->score(*setup_.model, max_rows, max_tokens, setup_.comm,
                                                     progress, setup_.context_rank());
  if (choices.stopped) return false;
  // They belong to no set: beside sets with names they get their own entry.
  if (!setup_.data->evals.front().name.empty()) entries->emplace_back();
  add_choices(choices, &entries->back());
  return true;
}

}  // namespace tessera
