// What happens before the first step: open, plan, check, allocate, load.
#include <algorithm>
#include <limits>

#include "arguments/lora_arguments.h"
#include "arguments/offload_arguments.h"
#include "arguments/optimizer_arguments.h"
#include "arguments/quantization_arguments.h"
#include "arguments/zero_arguments.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_reader.h"
#include "comm/first_failure.h"
#include "formats/file_kind.h"
#include "io/file.h"
#include "model/families.h"
#include "model/initialize.h"
#include "platform/memory_info.h"
#include "train/output/shared_folder.h"
#include "train/trainer.h"
#include "train/work_mark.h"

namespace tessera {
namespace {

// Whether all nodes see output_dir: every node writes its part of a checkpoint. Collective.
bool check_output_is_shared(const TrainingArguments& args, Communicator& comm) {
  if (comm.world().num_nodes == 1 || is_shared_by_nodes(comm, args.output_dir)) return true;
  if (args.save_strategy != "no") {
    fail(ExitCode::kBadConfig,
         "output_dir {}: not the same folder on all nodes, of which each writes its part of a checkpoint: "
         "take one on a file system that they share, or save_strategy no",
         args.output_dir);
  }
  if (comm.world().rank == 0) {
    log_warning("output_dir {}: not the same folder on all nodes: a signal ends the run without a checkpoint",
                args.output_dir);
  }
  return false;
}

// What the files of the run will take. A run that has begun continues as far as it gets: space may be freed
// meanwhile.
DiskPlan plan_disk_use(const TrainingArguments& args, const TrainableModel& model, const RunPlanner& planner,
                       const World& world, const ActionSchedule& actions, const RunResume& resume) {
  CheckpointCount count = {actions.num_saves(resume ? resume.record().progress.step : 0),
                           args.save_total_limit, 0};
  // The newest and the best.
  if (!args.metric_for_best_model.empty() && count.total_limit == 1) count.total_limit = 2;
  if (resume && resume.is_in_place()) count.num_present = num_checkpoints_in(args.output_dir);
  DiskPlan plan = plan_disk(model.layout(), {args.export_dtype(), state_tensors_of(args)}, count);
  plan.free_bytes = free_disk_bytes(args.output_dir);
  if (!args.offload_dir.empty()) {
    plan.offload_bytes = offload_bytes(zero_layout(model.layout(), world.num_nodes, world.local_world_size),
                                       zero_settings_of(args, model.config(), 1)) +
                         world.local_world_size * planner.offloaded_input_bytes();
    plan.offload_free_bytes = free_disk_bytes(args.offload_dir);
    plan.offload_shares_disk = share_disk(args.offload_dir, args.output_dir);
    // A disk without this room fails the start in any case, which would take longer.
    const std::string offload = offload_refusal(plan, args.offload_dir);
    if (!offload.empty()) fail(ExitCode::kBadConfig, "{}", offload);
  }
  const std::string refusal = disk_refusal(plan, args.output_dir);
  if (!refusal.empty() && !resume) fail(ExitCode::kBadConfig, "{}", refusal);
  const std::string warning = refusal.empty() ? disk_warning(plan, args.output_dir) : refusal;
  if (!warning.empty()) log_warning("{}", warning);
  return plan;
}

std::string job_name(const World& world, const std::string& output_dir) {
  return fmt::format("{}\n{}", world.run_id, std::filesystem::absolute(output_dir).native());
}

}  // namespace

Trainer::Trainer(const TrainingArguments& args, ThreadPool& pool, TrainObserver& observer, Communicator& comm,
                 const OpsFactory& make_ops)
    : args_(args),
      pool_(pool),
      comm_(comm),
      network_meter_(comm.rail()),
      exchange_(comm.world(), !args.offload_dir.empty()),
      best_rule_(args),
      log_(args.include_num_input_tokens_seen != "no", observer_) {
  if (is_root() || observer.is_for_every_rank()) observer_.add(observer);
  if (is_root()) warnings_.emplace();
  record_.arguments = Json::parse(training_arguments_json(args_));  // what follows may fill them in
  record_.launch_id = args_.launch_id;
  record_.world_size = world().world_size;
  comm_.position().set_folder(std::filesystem::absolute(args_.output_dir));
  mark_work(comm_, OtherWork::kPreparing, 1);
  if (is_root()) {
    check_can_write_in(args_.output_dir);
    check_spares_model(args_.output_dir, args_.model);
  }
  const PatientScope patience(comm_);
  output_is_shared_ = check_output_is_shared(args_, comm_);
  open_model(make_ops);
  // The state of another optimizer is of no use.
  if (args_.peer_snapshot_steps > 0) {
    snapshots_.emplace(comm_, pool_, job_name(world(), args_.output_dir) + '\n' + args_.optim);
  }
  resume_.emplace(args_, comm_, snapshots_ ? &*snapshots_ : nullptr);
  data_ = open_training_data(args_, model_->config(), pool_, comm_, observer_);
  open_choices();
  plan_run();
  allocate_and_load();
}

void Trainer::open_model(const OpsFactory& make_ops) {
  check_is_model_folder(args_.model);
  ModelConfig config = read_model_config(args_.model);
  config.lora = lora_config_of(args_);
  config.base_quantization = base_quantization_of(args_);
  model_file_ = SafetensorsModel::open(args_.model);
  ops_ = make_ops(pool_);
  clocked_ops_.emplace(*ops_);
  model_ = make_model(config, args_.training_dtype(), *clocked_ops_);
  plan_.num_parameters = model_->layout().num_parameters();
  plan_.num_frozen = frozen_parameters(*model_);
  plan_.operations = ops_->description();
  plan_.num_threads = pool_.num_threads();
  peak_.emplace(args_.measure_peak, pool_, model_->dtype(), comm_);
  plan_.peak = peak_->at_start();
}

void Trainer::open_choices() {
  if (!args_.evaluates() || args_.eval_choices.empty()) return;
  const Tokenizer tokenizer = Tokenizer::open(tokenizer_folder(args_));
  const ModelConfig& config = model_->config();
  choices_ = ChoiceSet::open(args_.eval_choices, tokenizer, args_.add_special_tokens,
                             config.max_position_embeddings, config.vocab_size);
  if (choices_->num_cut_contexts() > 0) {
    log_warning("eval_choices: {}", choices_->cut_contexts_text(config.max_position_embeddings));
  }
}

void Trainer::plan_run() {
  BatchPlanOptions options = args_.batch_options(world().world_size);
  options.supply = data_->train.supply();
  if (options.supply != nullptr) {
    options.num_rows = args_.max_steps * global_batch_rows(options);
  } else {
    options.mixture = data_->train.mixture();
    for (const int64_t share : mixture_shares(options.mixture)) options.num_rows += share;
  }
  record_.model = model_shape(model_->config());
  record_.data = data_record(data_->train, data_->row_limit, args_.packing_mode(), options);
  if (*resume_) options = resume_->continue_batches(options, &args_, &record_);
  check_enough_rows(options, ways_to_more_rows(args_));
  rows_.emplace(data_->train, options, world().world_size);

  plan_.num_rows = options.supply != nullptr ? 0 : options.num_rows;
  plan_.num_tokens = data_->train.num_tokens();
  plan_.eval_rows = data_->eval ? data_->eval->num_rows() : 0;
  plan_steps(args_, options, rows_->batches(), &plan_);
  if (plan_.num_warmup_steps >= plan_.max_steps && plan_.num_warmup_steps > 0) {
    log_warning("the warm-up of {} is not over when the run ends after {}",
                count_of(plan_.num_warmup_steps, "step"), plan_.max_steps);
  }
  actions_.emplace(args_, plan_.steps_per_epoch, plan_.max_steps);
  schedule_ = make_schedule({args_.lr_scheduler_type, args_.lr_scheduler_kwargs, args_.learning_rate,
                             plan_.num_warmup_steps, plan_.max_steps});
  schedule_->betas(plan_.max_steps - 1);  // refuses a momentum that grows out of range before the first step

  DataFacts facts;
  facts.max_row_length = data_->train.max_row_length();
  facts.max_eval_row_length =
      std::max(data_->eval ? data_->eval->max_row_length() : 0, choices_ ? choices_->max_row_length() : 0);
  facts.largest_pass = [this](int64_t micro_batches_per_pass) {
    rows_->set_micro_batches_per_pass(micro_batches_per_pass);
    return rows_->largest_pass(plan_.max_steps);
  };
  if (args_.fit) choose_form(options, facts);
  const RunPlanner planner(args_, *model_, options, facts);
  plan_.micro_batches_per_pass = planner.micro_batches_per_pass();
  plan_.max_pass_tokens = planner.max_pass_tokens();
  if (is_root()) plan_.disk = plan_disk_use(args_, *model_, planner, world(), *actions_, *resume_);
  plan_memory_use(planner, options, facts);
}

MachineFacts Trainer::machine_facts() const {
  const std::optional<ProportionalMemory> resident = proportional_memory();
  MachineFacts machine;
  machine.num_nodes = world().num_nodes;
  machine.local_world_size = world().local_world_size;
  machine.num_threads = pool_.num_threads();
  machine.baseline_bytes = resident ? resident->private_bytes() + resident->shared_bytes : resident_bytes();
  machine.first_rank_exports = !output_is_shared_;
  machine.free_bytes = memory_info().free_for_process_bytes;
  // What an earlier start has left is used again.
  if (snapshots_) machine.free_bytes += snapshots_->held_bytes_of_node();
  if (args_.fit && !args_.fit_memory.empty()) {
    machine.free_bytes = std::min(machine.free_bytes, *parse_bytes(args_.fit_memory) -
                                                          machine.local_world_size * machine.baseline_bytes);
  }
  return machine;
}

void Trainer::plan_memory_use(const RunPlanner& planner, const BatchPlanOptions& batch,
                              const DataFacts& data) {
  MachineFacts machine = machine_facts();
  machine.on_all_ranks = [this](bool fits) { return comm_.all(fits, {"memory plan"}); };
  const MemoryRequest request = planner.choose_memory(machine);
  planner.fill_memory(request, machine, &plan_);
  observer_.on_plan(plan_);
  const std::string refusal = planner.refusal(request, machine);
  if (!refusal.empty()) fail(ExitCode::kBadConfig, "{}{}", refusal, form_advice(ladder_request(batch, data)));
}

// Rank 0's disk stands for those of the others.
void Trainer::prepare_disk() {
  create_folder(args_.offload_dir);
  if (args_.measure_peak && is_root() && !disk_rate_) {
    disk_rate_ = measure_disk_rate(args_.offload_dir, transfer_settings(args_));
  }
}

void Trainer::allocate_and_load() {
  mark_work(comm_, OtherWork::kLoadingWeights, 1);
  if (!args_.offload_dir.empty()) prepare_disk();
  if (model_->is_adapted()) frozen_.emplace(*model_, comm_, pool_);
  parameters_ = make_parameter_state(*model_, plan_.zero, make_optimizer(args_), args_.weight_decay_norms,
                                     comm_, pool_);
  if (plan_.limits.offload_inputs) {
    model_->offload_inputs_to(
        std::filesystem::path(args_.offload_dir) / fmt::format("rank-{}.inputs", world().rank),
        transfer_settings(args_));
  }
  model_->reserve(plan_.limits);
  stop_.emplace(comm_, network_meter_, StopOptions{args_.save_on_sigterm, args_.time_to_end_s(), [this] {
                                                     return files_->write_estimate_s();
                                                   }});
  guards_ = make_step_guards(args_, *model_, data_->train, *parameters_, comm_);
  if (frozen_) frozen_->load(*model_file_, loading_progress());
  if (*resume_) {
    resume_->load(*model_, *parameters_, pool_, observer_);
    restore_progress();
  } else {
    load_parameters();
  }
  model_file_.reset();
  disk_meter_.emplace(*model_, *parameters_);
  loading_peak_bytes_ = peak_resident_bytes();
  ExportOptions export_options;
  export_options.save_dtype = args_.export_dtype();
  export_options.tokenizer_folder = tokenizer_folder(args_);
  export_options.chat_template = data_->chat_template;
  export_options.end_of_answer = data_->end_of_answer;
  export_options.generation_config = std::filesystem::path(args_.model) / "generation_config.json";
  files_.emplace(args_, comm_, pool_, *model_, *parameters_, network_meter_, observer_,
                 RunFilesOptions{export_options, plan_.snapshot_bytes, output_is_shared_,
                                 *resume_ ? resume_->last_saved_step() : -1});
  if (snapshots_) snapshots_->open(model_->layout(), *parameters_);
  runner_.emplace(*model_, *parameters_, data_->train, comm_, pool_, *stop_, *clocked_ops_,
                  StepOptions{args_.label_smoothing_factor, args_.replay_check_steps,
                              args_.neftune_noise_alpha, static_cast<uint64_t>(args_.seed),
                              model_->is_adapted() ? model_->config().lora->lora_dropout : 0});
}

std::function<void(const LoadProgress&)> Trainer::loading_progress() {
  return [this](const LoadProgress& progress) {
    observer_.on_loading(progress.fraction(), progress.bytes_per_second());
  };
}

// The weights, or of adapters those of adapter_name_or_path or new ones.
void Trainer::load_parameters() {
  const LoadOnce once = args_.load_weights_once == "per_cluster" ? LoadOnce::kPerCluster : LoadOnce::kPerNode;
  if (!frozen_) return parameters_->load(*model_file_, once, loading_progress());
  if (!args_.adapter_name_or_path.empty()) {
    const auto file =
        SafetensorsModel::open(std::filesystem::path(args_.adapter_name_or_path) / kAdapterFileName);
    return parameters_->load(file, once, {});
  }
  for (const ElementRange& range : parameters_->kept()) initialize_adapters(range);
  parameters_->state_written();
}

void Trainer::initialize_adapters(const ElementRange& range) {
  std::vector<float> values;
  for (const Parameter& parameter : model_->layout().parameters()) {
    const int64_t begin = std::max(range.begin, parameter.offset);
    const int64_t end = std::min(range.end, parameter.offset + parameter.num_elements);
    if (begin >= end) continue;
    values.resize(static_cast<size_t>(end - begin));
    initialize_parameter(parameter, model_->config().initializer_range, static_cast<uint64_t>(args_.seed),
                         begin - parameter.offset, TensorView(values.data(), DType::kF32, {end - begin}));
    parameters_->write_state(StateKind::kMaster, begin, values);
  }
}

void Trainer::restore_progress() {
  progress_ = resume_->record().progress;
  BestModel& best = progress_.best;
  if (best.metric != best_rule_.metric() || best.greater_is_better != best_rule_.greater_is_better()) {
    if (is_root() && !best.metric.empty() && !best_rule_.metric().empty()) {
      log_warning("the best {} so far, {}, does not count for metric_for_best_model {}{}", best.metric,
                  *best.value, best_rule_.metric(),
                  best.metric == best_rule_.metric() ? " in the other direction" : "");
    }
    best = {};
  }
  log_.restore(resume_->log_history());
  for (const auto& guard : guards_) guard->restore(progress_);
  if (progress_.plateau) schedule_->restore(*progress_.plateau);
  if (is_root() && schedule_->plateau() && schedule_->learning_rate(progress_.step) != args_.learning_rate) {
    log_info("lr_scheduler_type {} continues with a learning rate of {}", args_.lr_scheduler_type,
             schedule_->learning_rate(progress_.step));
  }
}

std::filesystem::path Trainer::best_folder(int64_t step) const {
  const bool is_of_this_start = !*resume_ || step > resume_->record().progress.step;
  const std::filesystem::path own = args_.output_dir;
  return (is_of_this_start ? own : resume_->checkpoint_parent()) / checkpoint_name(step);
}

void Trainer::find_best_checkpoint() {
  BestModel& best = progress_.best;
  if (best.step == best.checkpoint_step) return;
  std::error_code ignored;
  const bool is_there = is_root() && std::filesystem::exists(best_folder(best.step) / kManifestName, ignored);
  if (comm_.broadcast(is_there, 0, {"best checkpoint"})) best.checkpoint_step = best.step;
}

void Trainer::load_best_model() {
  const BestModel& best = progress_.best;
  if (best.checkpoint_step == 0) {
    if (is_root()) {
      log_warning(
          "load_best_model_at_end: no evaluation that was the best has a checkpoint; the finished "
          "model is that of step {}",
          progress_.step);
    }
    return;
  }
  const std::filesystem::path folder = best_folder(best.checkpoint_step);
  if (is_root())
    log_info("the finished model is the best, {} ({} {})", folder.string(), best.metric, *best.value);
  if (best.checkpoint_step == progress_.step) return;
  mark_work(comm_, OtherWork::kLoadingBestModel, progress_.step + 1);
  const PatientScope patience(comm_);
  const std::optional<Error> error = outside_error([&] {
    CheckpointReader::open(folder).load(
        model_->layout(), parameters_->state_tensors(), parameters_->kept(),
        [this](StateKind kind, int64_t begin, std::span<const float> values) {
          parameters_->write_state(kind, begin, values);
        },
        pool_);
  });
  if (const auto told = first_error(comm_, error, {"best model"})) {
    fail(told->code, "load_best_model_at_end: {}", told->message);
  }
  parameters_->state_written();
}

}  // namespace tessera
