#include "train/setup/run_planning.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "data/rows/batch_plan.h"
#include "io/file.h"
#include "platform/memory_info.h"
#include "settings/derived.h"
#include "train/setup/form_choice.h"

namespace tessera {
namespace {

// Disk space of the run's files. A run that has begun continues as far as it gets: space may be freed in the
// meantime.
DiskPlan plan_disk_use(const RunSpec& spec, const TrainableModel& model, const RunPlan& run,
                       const World& world, const ActionSchedule& actions, const RunResume& resume) {
  CheckpointCount count = {actions.num_saves(resume ? resume.record().progress.step : 0),
                           spec.saving.total_limit, 0};
  // The newest and the best.
  if (!spec.evaluation.metric.empty() && count.total_limit == 1) count.total_limit = 2;
  if (resume && resume.is_in_place()) count.num_present = num_checkpoints_in(spec.output_dir);
  DiskPlan plan = plan_disk(model.layout(),
                            {spec.precision.export_dtype(), saved_tensors_of(spec, world.num_nodes)}, count);
  plan.free_bytes = free_disk_bytes(spec.output_dir);
  if (!spec.placement.offload_dir.empty()) {
    const ZeroSettings settings = zero_settings_of(spec, model.config(), 1);
    plan.offload_bytes = offload_bytes(model, world.num_nodes, world.local_world_size, settings) +
                         world.local_world_size * model.offloaded_bytes(run.limits);
    plan.discarded_bytes = discarded_offload_bytes(model, world.num_nodes, world.local_world_size, settings);
    plan.offload_free_bytes = free_disk_bytes(spec.placement.offload_dir);
    plan.offload_shares_disk = share_disk(spec.placement.offload_dir, spec.output_dir);
    // A disk without this room fails the start in any case, which would take longer.
    const std::string offload = offload_refusal(plan, spec.placement.offload_dir);
    if (!offload.empty()) fail(ExitCode::kBadConfig, "{}", offload);
  }
  const std::string refusal = disk_refusal(plan, spec.output_dir);
  if (!refusal.empty() && !resume) fail(ExitCode::kBadConfig, "{}", refusal);
  const std::string warning = refusal.empty() ? disk_warning(plan, spec.output_dir) : refusal;
  if (!warning.empty()) log_warning("{}", warning);
  return plan;
}

LengthGroups length_groups(RunInputs& inputs) {
  return {.row_length = [&inputs](int64_t row) { return inputs.data->train.num_input_ids(row); },
          .evaluations_before =
              [&inputs](int64_t epoch) {
                return (inputs.asked.evaluation.on_start ? 1 : 0) +
                       inputs.actions->evaluations_up_to(epoch * inputs.plan.steps_per_epoch);
              }};
}

// The other settings that decide the order of rows grouped by length.
std::string sampling_text(SamplingStrategy strategy, const EvaluationSpec& evaluation) {
  if (strategy != SamplingStrategy::kGroupByLength) return "";
  return fmt::format("group_by_length with evaluations {}{}{}", evaluation.strategy,
                     evaluation.strategy == IntervalStrategy::kNo
                         ? ""
                         : fmt::format(" every {} after {}", evaluation.steps.value_or(1), evaluation.delay),
                     evaluation.on_start ? " from the start" : "");
}

// Fractions that are multiples of each other need not be in steps.
void check_saves_at_evaluations(const EvaluationSpec& evaluation, const SavingSpec& saving,
                                const ActionSchedule& actions, int64_t max_steps) {
  const bool by_steps = evaluation.load_best_model && saving.strategy == SaveStrategy::kSteps;
  if (!by_steps || actions.save_steps() % actions.eval_steps() == 0) return;
  fail(ExitCode::kBadConfig,
       "load_best_model_at_end needs save_steps to be a multiple of eval_steps: of the {} steps of this run, "
       "save_steps {} is every {} and eval_steps {} every {}; give both in steps",
       max_steps, saving.steps, actions.save_steps(), *evaluation.steps, actions.eval_steps());
}

}  // namespace

void plan_steps_of(RunInputs& inputs) {
  const RunSpec& spec = inputs.asked;
  const Dataset& train = inputs.data->train;
  RunPlan& plan = inputs.plan;
  BatchPlanOptions& options = inputs.batch;
  options = spec.batch_options(inputs.world().world_size);
  options.supply = train.supply();
  options.whole_micro_batches = has_balance_loss(inputs.model->config());
  if (spec.data.sampling_strategy == SamplingStrategy::kGroupByLength)
    options.length_groups = length_groups(inputs);
  if (options.supply != nullptr) {
    options.num_rows = spec.batch.max_steps * global_batch_rows(options);
  } else {
    options.mixture = train.mixture();
    for (const int64_t share : mixture_shares(options.mixture)) options.num_rows += share;
  }
  inputs.record.model = model_shape(inputs.model->config());
  inputs.record.data = data_record(train, inputs.data->row_limit, train.packing(), options);
  inputs.record.data.sampling = sampling_text(spec.data.sampling_strategy, spec.evaluation);
  inputs.record.data.splits_documents = inputs.data->splits_documents;
  if (*inputs.resume) options = inputs.resume->continue_batches(options, &inputs.record);
  if (const std::string warning = few_rows_warning(options, ways_to_more_rows(spec.data));
      !warning.empty() && inputs.is_root())
    log_warning("{}", warning);
  if (!spec.objective.average_tokens_across_devices && options.cut && inputs.world().world_size > 1) {
    fail(ExitCode::kBadConfig,
         "average_tokens_across_devices false: the mean of every rank counts, and the checkpoint's ranks had "
         "other rows: resume on {} with the same batch sizes",
         count_of(options.world_size, "rank"));
  }
  inputs.rows.emplace(train, options, num_row_ranks(spec.sharding, inputs.world().world_size),
                      spec.outer.sync_every > 0                      ? inputs.world().num_nodes
                      : spec.objective.average_tokens_across_devices ? 1
                                                                     : inputs.world().world_size);

  plan.num_rows = options.supply != nullptr ? 0 : options.num_rows;
  plan.num_tokens = tokens_of_epoch(train);
  plan.eval_rows = inputs.data->num_eval_rows();
  plan_steps(spec.batch, spec.schedule, options, inputs.rows->batches(), &plan);
  if (plan.num_warmup_steps >= plan.max_steps && plan.num_warmup_steps > 0) {
    log_warning("the warm-up of {} is not over when the run ends after {}",
                count_of(plan.num_warmup_steps, "step"), plan.max_steps);
  }
  inputs.actions.emplace(spec, plan.steps_per_epoch, plan.max_steps);
  check_saves_at_evaluations(spec.evaluation, spec.saving, *inputs.actions, plan.max_steps);
  inputs.schedule = make_schedule(spec.schedule, plan.max_steps);
  // Refuses a momentum that grows out of range.
  inputs.schedule->betas(plan.max_steps - 1);

  RowLengths& lengths = inputs.lengths;
  lengths.max_row_length = train.max_row_length();
  lengths.max_eval_row_length =
      std::max(inputs.data->max_eval_row_length(), inputs.choices ? inputs.choices->max_row_length() : 0);
  lengths.largest_pass = [&inputs](int64_t micro_batches_per_pass) {
    inputs.rows->set_micro_batches_per_pass(micro_batches_per_pass);
    return inputs.rows->largest_pass(inputs.plan.max_steps);
  };
}

void make_plan(RunSetup& setup) {
  const RunSpec& spec = setup.spec;
  RunPlan& plan = setup.plan;
  plan = plan_run({spec, *setup.model, setup.batch, setup.lengths, setup.form.machine}, std::move(plan));
  if (setup.is_root()) {
    plan.disk = plan_disk_use(spec, *setup.model, plan, setup.world(), *setup.actions, *setup.resume);
  }
  setup.observers.on_plan(plan);
  if (plan.refusal.empty()) return;
  // Only processors offer other forms than the given one.
  const bool has_forms = !setup.model->device().own_memory();
  fail(ExitCode::kBadConfig, "{}{}", plan.refusal,
       has_forms ? fit_advice(fit_request(setup, spec, setup.form.machine)) : "");
}

int64_t tokens_of_epoch(const Dataset& dataset) {
  const std::vector<MixturePart>& mixture = dataset.mixture();
  if (mixture.size() < 2) return dataset.num_tokens();
  const std::vector<int64_t> shares = mixture_shares(mixture);
  double sum = 0;
  int64_t row = 0;
  for (size_t part = 0; part < mixture.size(); ++part) {
    int64_t num_tokens = 0;
    const int64_t end = row + mixture[part].num_rows;
    for (; row < end; ++row) num_tokens += dataset.row_length(row);
    sum += static_cast<double>(num_tokens) * static_cast<double>(shares[part]) /
           static_cast<double>(mixture[part].num_rows);
  }
  return std::llround(sum);
}

MachineResources machine_resources(const RunInputs& inputs) {
  const std::optional<ProportionalMemory> resident = proportional_memory();
  MachineResources machine;
  machine.num_nodes = inputs.world().num_nodes;
  machine.local_world_size = inputs.world().local_world_size;
  machine.num_threads = inputs.pool.num_threads();
  machine.baseline_bytes = resident ? resident->private_bytes() + resident->shared_bytes : resident_bytes();
  machine.first_rank_exports = !inputs.output_is_shared;
  machine.free_bytes = memory_info().free_for_process_bytes;
  // Memory left by an earlier start is used again.
  if (inputs.snapshots) machine.free_bytes += inputs.snapshots->held_bytes_of_node();
  if (inputs.asked.placement.fit && inputs.asked.placement.fit_memory_bytes) {
    machine.free_bytes = std::min(machine.free_bytes, *inputs.asked.placement.fit_memory_bytes -
                                                          machine.local_world_size * machine.baseline_bytes);
  }
  take_device_memory(inputs.model->device(), &machine);
  for (int64_t* bytes : {&machine.free_bytes, &machine.host_free_bytes}) {
    *bytes = -inputs.comm.max(-*bytes, {"free memory"});
  }
  return machine;
}

}  // namespace tessera
