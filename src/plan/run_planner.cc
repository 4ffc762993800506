#include "plan/run_planner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/divide_up.h"
#include "base/text.h"
#include "context/context_team.h"
#include "context/slice_batch.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "model/attention_shape.h"
#include "plan/context_plan.h"
#include "plan/expert_plan.h"
#include "plan/passes.h"
#include "plan/planned_model.h"
#include "settings/derived.h"

namespace tessera {
namespace {

constexpr int64_t kUncut = std::numeric_limits<int64_t>::max();

// State in blocks of codes needs parameters that begin with a block. Only small or odd models have others.
void check_state_blocks(const OptimizerSpec& optimizer, const ParameterLayout& layout) {
  for (const StateTensor& tensor : state_tensors_of(optimizer)) {
    const int64_t block = state_block(tensor.dtype);
    for (const Parameter& parameter : layout.parameters()) {
      if (parameter.offset % block == 0) continue;
      fail(ExitCode::kBadConfig,
           "optim {}: expected tensors of multiples of {} elements before '{}' in its layer, as blocks of "
           "8-bit state need them, found {} more than such a multiple; use adamw_bf16",
           optimizer.form, block, parameter.name, parameter.offset % block);
    }
  }
}

void check_attention_dropout(const RunSpec& spec, const ModelConfig& config) {
  if (config.dropout.attention == 0 || spec.sharding.context_parallel_size == 1) return;
  fail(ExitCode::kBadConfig,
       "context_parallel_size {}: ranks cannot share the rows of a model with attention_dropout {} in its "
       "config.json: leave one of the two out",
       spec.sharding.context_parallel_size, config.dropout.attention);
}

// What models with an encoder lack, and how long their rows may be.
void check_encoder(const RunSpec& spec, const ModelConfig& config, const RowLengths& data) {
  if (!config.encoder && !config.encoder_decoder) return;
  if (config.encoder_decoder && spec.objective.neftune_alpha)
    fail(ExitCode::kBadConfig,
         "neftune_noise_alpha: models with an encoder and a decoder are trained without it");
  if (spec.sharding.context_parallel_size > 1)
    fail(ExitCode::kBadConfig,
         "context_parallel_size {}: ranks cannot share the rows of a model with an encoder: leave it out",
         spec.sharding.context_parallel_size);
  if (spec.placement.gradient_checkpointing &&
      spec.placement.checkpointing_mode == CheckpointingMode::kOffload)
    fail(ExitCode::kBadConfig,
         "gradient_checkpointing_mode offload: the inputs of the layers of a model with an encoder stay in "
         "memory; "
         "leave it out");
  const int64_t longest = std::max(data.max_row_length, data.max_eval_row_length);
  if (config.encoder && config.encoder->has_positions && longest > config.max_position_embeddings)
    fail(ExitCode::kBadConfig, "max_length: rows of {} tokens, but the model has {} positions", longest,
         config.max_position_embeddings);
}

void check_experts(const RunSpec& spec, const ModelConfig& config) {
  if (!has_balance_loss(config)) return;
  if (spec.sharding.context_parallel_size > 1)
    fail(ExitCode::kBadConfig,
         "context_parallel_size {}: each rank would see a slice of the rows whose router_aux_loss_coef "
         "counts: "
         "leave it out, or set output_router_logits to false in config.json",
         spec.sharding.context_parallel_size);
  if (spec.placement.merge_micro_batches == AutoChoice::kAlways)
    fail(ExitCode::kBadConfig,
         "merge_micro_batches always: router_aux_loss_coef applies to each micro-batch: leave it out, or set "
         "output_router_logits to false in config.json");
}

// Numbers of ranks that may share rows, above `size` and up to all ranks.
std::vector<int64_t> larger_teams(const ModelConfig& config, const MachineResources& machine, int64_t size) {
  if (config.encoder_decoder || config.encoder || has_balance_loss(config) || config.dropout.attention > 0)
    return {};
  const AttentionShape heads = attention_shape(config, 0);
  std::vector<int64_t> sizes;
  while (++size <= int64_t{machine.num_nodes} * machine.local_world_size) {
    if (context_heads_refusal(heads, size).empty() &&
        context_team_refusal(machine.num_nodes, machine.local_world_size, size).empty()) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

}  // namespace

RowLengths uniform_rows(int64_t row_tokens, int64_t micro_batch_rows) {
  RowLengths lengths;
  lengths.max_row_length = row_tokens;
  lengths.largest_pass = [=](int64_t micro_batches) { return micro_batches * micro_batch_rows * row_tokens; };
  return lengths;
}

// The largest pass decides the memory; how many micro-batches make up a pass is decided for the largest
// micro-batch.
RunPlanner::RunPlanner(const RunSpec& spec, const TrainableModel& model, const BatchPlanOptions& batch,
                       RowLengths data)
    : spec_(spec),
      model_(model),
      data_(std::move(data)),
      micro_batches_(micro_batches_of_rank(batch)),
      micro_batch_rows_(tessera::micro_batch_rows(batch)) {
  check_encoder(spec, model.config(), data_);
  check_attention_dropout(spec, model.config());
  check_experts(spec, model.config());
  check_state_blocks(spec.optimizer, model.layout());
  const AttentionShape heads = attention_shape(model.config(), 0);
  const std::string refusal = context_heads_refusal(heads, spec.sharding.context_parallel_size);
  if (!refusal.empty()) fail(ExitCode::kBadConfig, "{}", refusal);
  max_pass_tokens_ = data_.largest_pass(1);
  if (spec.placement.merge_micro_batches == AutoChoice::kNever || micro_batches_ == 1 ||
      has_balance_loss(model.config()))
    return;
  if (spec.placement.merge_micro_batches == AutoChoice::kAlways) {
    micro_batches_per_pass_ = micro_batches_;
  } else {
    const ActivationLimits micro_batch =
        limits_for(micro_batch_rows_, kUncut, spec.placement.gradient_checkpointing);
    micro_batches_per_pass_ =
        tessera::micro_batches_per_pass(model, micro_batch, micro_batches_, state_tensors_of(spec.optimizer));
  }
  max_pass_tokens_ = data_.largest_pass(micro_batches_per_pass_);
}

// Evaluation batches are cut to the size of training's; only a longer row needs more.
ActivationLimits RunPlanner::limits_for(int64_t batch_size, int64_t max_row_length,
                                        bool gradient_checkpointing) const {
  const int64_t train_row = std::min(data_.max_row_length, max_row_length);
  const int64_t eval_row = std::min(data_.max_eval_row_length, max_row_length);
  ActivationLimits limits;
  limits.max_tokens = tokens_of_member(std::max(std::min(max_pass_tokens_, batch_size * train_row), eval_row),
                                       spec_.sharding.context_parallel_size);
  limits.max_sequence_length = std::max(train_row, eval_row);
  limits.training = true;
  limits.gradient_checkpointing = gradient_checkpointing;
  limits.offload_inputs =
      gradient_checkpointing && spec_.placement.checkpointing_mode == CheckpointingMode::kOffload;
  limits.pack_weights = spec_.placement.pack_weights == AutoChoice::kAlways;
  return limits;
}

int64_t RunPlanner::offloaded_input_bytes() const {
  return model_.offloaded_bytes(limits_for(micro_batch_rows_ * micro_batches_per_pass_, kUncut,
                                           spec_.placement.gradient_checkpointing));
}

int64_t RunPlanner::update_workspace_bytes(int64_t num_threads) const {
  const std::unique_ptr<const Optimizer> optimizer = make_optimizer(spec_.optimizer);
  int64_t bytes = 0;
  for (const Parameter& parameter : model_.layout().parameters()) {
    const ParameterShape shape = shape_of(parameter);
    if (is_indivisible(optimizer->state_tensors(), shape)) {
      bytes = std::max(bytes, optimizer->workspace_bytes(shape, model_.dtype(), num_threads));
    }
  }
  return bytes;
}

MemoryRequest RunPlanner::make_request(const MachineResources& machine) const {
  const std::string refusal =
      context_team_refusal(machine.num_nodes, machine.local_world_size, spec_.sharding.context_parallel_size);
  if (!refusal.empty()) fail(ExitCode::kBadConfig, "{}", refusal);
  MemoryRequest request;
  request.context_size = spec_.sharding.context_parallel_size;
  request.limits =
      limits_for(micro_batch_rows_ * micro_batches_per_pass_, kUncut, spec_.placement.gradient_checkpointing);
  request.baseline_bytes = machine.baseline_bytes;
  request.num_nodes = machine.num_nodes;
  request.local_world_size = machine.local_world_size;
  request.first_rank_exports = machine.first_rank_exports;
  request.connections = static_cast<int>(spec_.network.connections);
  request.fabric = spec_.network.fabric;
  request.peer_snapshots = spec_.saving.peer_snapshot_steps > 0;
  request.zero = zero_settings_of(spec_, model_.config(), divide_up(micro_batches_, micro_batches_per_pass_));
  const bool on_host = !model_.device().own_memory();  // where everything is, whatever the flags say
  request.zero.optimizer_on_host = request.zero.optimizer_on_host && !on_host;
  request.zero.parameters_on_host = request.zero.parameters_on_host && !on_host;
  request.export_bytes = export_bytes(model_.layout(), spec_.precision.export_dtype(), request);
  if (model_.config().base_quantization == Quantization::kInt8) {
    request.product_bytes = int8_library_bytes() * machine.num_threads;
  }
  request.frozen_file_bytes = frozen_places(model_, request.zero).file_bytes;
  request.zero.update_workspace_bytes = update_workspace_bytes(machine.num_threads);
  return request;
}

void take_device_memory(const Device& device, MachineResources* machine) {
  const std::optional<Device::OwnMemory> memory = device.own_memory();
  if (!memory) return;
  const int64_t ranks_on_device = divide_up(machine->local_world_size, memory->num_devices);
  machine->host_free_bytes = std::exchange(machine->free_bytes, memory->free_bytes / ranks_on_device);
  machine->has_disk = false;  // nothing leaves a card for a disk
}

bool RunPlanner::fits(const MemoryRequest& request, const MachineResources& machine) const {
  return needed_bytes(model_, request) <= machine.free_bytes &&
         (!model_.device().own_memory() || needed_host_bytes(model_, request) <= machine.host_free_bytes);
}

void RunPlanner::choose_experts(const MachineResources& machine, MemoryRequest* request) const {
  const AutoChoice choice = spec_.sharding.expert_parallel;
  if (choice == AutoChoice::kNever || machine.num_nodes == 1) return;
  const std::string obstacle = expert_parallel_obstacle(spec_, model_.config(), machine.num_nodes);
  if (!obstacle.empty()) {
    if (choice == AutoChoice::kAuto) return;
    fail(ExitCode::kBadConfig, "expert_parallel always cannot be combined with {}", obstacle);
  }
  MemoryRequest divided = *request;
  divided.zero.divides_experts = true;
  divided.zero.schedule = GatherSchedule::kPerLayer;
  divided.limits.expert_nodes = machine.num_nodes;
  if (choice == AutoChoice::kAlways ||
      (fits(divided, machine) &&
       (!fits(*request, machine) || divided_experts_are_faster(model_, divided, *request))))
    *request = divided;
}

void RunPlanner::choose_packing(const MachineResources& machine, MemoryRequest* request) const {
  check_packed_weights(model_, *request);
  if (spec_.placement.pack_weights != AutoChoice::kAuto || !can_keep_packed_weights(model_, *request)) return;
  request->limits.pack_weights = true;
  request->limits.pack_weights = fits(*request, machine);
}

// The largest count up to `most` with which the request fits, where one of `least` is kept without asking.
void RunPlanner::fit_largest(int64_t least, int64_t most, const MachineResources& machine,
                             MemoryRequest* request, int64_t* count) const {
  int64_t fitting = least, too_many = most + 1;
  while (too_many - fitting > 1) {
    *count = (fitting + too_many) / 2;
    (fits(*request, machine) ? fitting : too_many) = *count;
  }
  *count = fitting;
}

// Reads ahead as much of a layer's state as leaves half of the memory that is free without it: for packed
// weights, kept outputs, snapshots and files in the page cache.
void RunPlanner::choose_chunks_ahead(const MachineResources& machine, MemoryRequest* request) const {
  if (!request->zero.state_folder) return;
  request->zero.state_folder->chunks_ahead = kMinChunksAhead;
  const ZeroLayout layout = zero_layout(model_.layout(), request->num_nodes, request->local_world_size);
  MachineResources usable = machine;
  usable.free_bytes -= (machine.free_bytes - needed_bytes(model_, *request)) / 2;
  fit_largest(kMinChunksAhead, layer_state_chunks(layout, request->zero), usable, request,
              &request->zero.state_folder->chunks_ahead);
}

// The most outputs that leave an eighth of what is free without them: for files in the page cache.
void RunPlanner::choose_kept_outputs(const MachineResources& machine, MemoryRequest* request) const {
  if (!request->limits.gradient_checkpointing ||
      spec_.placement.checkpointing_mode != CheckpointingMode::kSelective)
    return;
  constexpr int64_t kFreeShare = 8;
  MachineResources usable = machine;
  usable.free_bytes -= (machine.free_bytes - needed_bytes(model_, *request)) / kFreeShare;
  fit_largest(0, model_.num_keepable_outputs(), usable, request, &request->limits.num_kept_outputs);
}

MemoryRequest RunPlanner::choose_memory(const MachineResources& machine) const {
  MemoryRequest request = make_request(machine);
  if (may_gather_per_layer(spec_, machine.num_nodes) && !fits(request, machine)) {
    request.zero.schedule = GatherSchedule::kPerLayer;
  }
  choose_experts(machine, &request);
  choose_chunks_ahead(machine, &request);
  choose_packing(machine, &request);
  choose_kept_outputs(machine, &request);
  return request;
}

MemoryRequest RunPlanner::choose_memory(const MachineResources& machine, GatherSchedule schedule) const {
  MemoryRequest request = make_request(machine);
  request.zero.schedule = schedule;
  if (schedule == GatherSchedule::kPerLayer) choose_experts(machine, &request);
  return choose_memory(machine, request.zero);
}

MemoryRequest RunPlanner::choose_memory(const MachineResources& machine, const ZeroSettings& zero) const {
  MemoryRequest request = make_request(machine);
  request.zero = zero;
  request.limits.expert_nodes = zero.divides_experts ? machine.num_nodes : 1;
  request.export_bytes = export_bytes(model_.layout(), spec_.precision.export_dtype(), request);
  choose_chunks_ahead(machine, &request);
  if (spec_.placement.pack_weights == AutoChoice::kAuto) choose_packing(machine, &request);
  choose_kept_outputs(machine, &request);
  return request;
}

void RunPlanner::fill_memory(const MemoryRequest& chosen, const MachineResources& machine,
                             RunPlan* plan) const {
  MemoryRequest request = chosen;
  if (spec_.saving.saves_in_background()) {
    request.snapshot_bytes = snapshot_bytes(
        model_, request, model_.device().own_memory() ? machine.host_free_bytes : machine.free_bytes);
  }
  MemoryRequest without = chosen;
  without.limits.gradient_checkpointing = false;
  without.limits.num_kept_outputs = 0;
  without.limits.offload_inputs = false;
  plan->fits_without_checkpointing = needed_bytes(model_, without) <= machine.free_bytes;
  plan->limits = request.limits;
  plan->snapshot_bytes = request.snapshot_bytes;
  plan->memory = plan_memory(model_, request);
  plan->zero = zero_settings(model_, request);
  plan->wire = mean_wire_bytes(zero_layout(model_.layout(), machine.num_nodes, machine.local_world_size),
                               plan->zero, 0);
  plan->wire.tokens = context_wire_bytes(model_, request) + expert_wire_bytes(model_, request);
  plan->free_bytes = machine.free_bytes;
}

std::vector<MemoryAlternative> RunPlanner::alternatives(const MemoryRequest& request,
                                                        const MachineResources& machine) const {
  MemoryChoices choices = {micro_batch_rows_, micro_batches_per_pass_,
                           [this](int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) {
                             return limits_for(batch_size, max_row_length, gradient_checkpointing);
                           },
                           spec_.batch.global_rows.has_value(), machine.has_disk};
  if (model_.device().own_memory()) {
    choices.host_takes = [&](const MemoryRequest& changed) {
      return needed_host_bytes(model_, changed) <= machine.host_free_bytes;
    };
  } else {
    choices.context_sizes = larger_teams(model_.config(), machine, request.context_size);
  }
  choices.make_model = [this, num_threads = machine.num_threads](int64_t context_size) {
    return std::make_unique<const PlannedModel>(model_.config(), model_.dtype(), num_threads, make_cpu_ops,
                                                context_size);
  };
  return memory_alternatives(request, choices);
}

std::string RunPlanner::refusal(const MemoryRequest& request, const MachineResources& machine) const {
  const int64_t of_host = needed_host_bytes(model_, request);
  if (model_.device().own_memory() && of_host > machine.host_free_bytes) {
    return fmt::format(
        "the run does not fit in the host's memory: it takes {} more, {} are free; with "
        "offload_optimizer_device none and offload_param_device none the card keeps its state",
        format_bytes(of_host), format_bytes(machine.host_free_bytes));
  }
  return memory_refusal(model_, request, machine.free_bytes, alternatives(request, machine));
}

RunPlan plan_run(const PlanInputs& inputs, RunPlan known) {
  const RunPlanner planner(inputs.spec, inputs.model, inputs.batch, inputs.data);
  const MemoryRequest request = planner.choose_memory(inputs.machine);
  RunPlan plan = std::move(known);
  plan.micro_batches_per_pass = planner.micro_batches_per_pass();
  plan.max_pass_tokens = planner.max_pass_tokens();
  plan.context_size = inputs.spec.sharding.context_parallel_size;
  planner.fill_memory(request, inputs.machine, &plan);
  plan.refusal = planner.refusal(request, inputs.machine);
  return plan;
}

void plan_steps(const BatchSpec& batch, const ScheduleSpec& schedule, const BatchPlanOptions& options,
                const BatchPlan& batches, RunPlan* plan) {
  plan->step_rows = global_batch_rows(options);
  plan->micro_batches = micro_batches_of_rank(options);
  plan->micro_batch_rows = micro_batch_rows(options);
  plan->steps_per_epoch = batches.steps_per_epoch();
  plan->max_steps = batch.max_steps > 0 ? batch.max_steps : batches.steps_for_epochs(batch.num_epochs);
  plan->num_warmup_steps = schedule.num_warmup_steps(plan->max_steps);
}

}  // namespace tessera
