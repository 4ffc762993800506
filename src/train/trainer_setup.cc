// What happens before the first step: open, plan, check, allocate, load.
#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "platform/memory_info.h"
#include "tokenizer/tokenizer.h"
#include "train/passes.h"
#include "train/shared_folder.h"
#include "train/trainer.h"
#include "train/zero_arguments.h"

namespace tessera {
namespace {

bool is_pretokenized(const std::string& file) { return file.ends_with(".safetensors"); }

bool needs_tokenizer(const std::vector<std::string>& files) {
  return !std::all_of(files.begin(), files.end(), is_pretokenized);
}

// What makes more rows of the same dataset, ending in a comma; "" where nothing does.
std::string ways_to_more_rows(const TrainingArguments& args) {
  if (!needs_tokenizer(args.dataset)) return "";
  if (args.packing) return "lower --max_length, ";
  return std::string("set --packing to cut the documents into rows of max_length tokens, ") +
         (args.text_per_line ? "" : "set --text_per_line if every line of a text file is a document, ");
}

}  // namespace

Trainer::Trainer(const TrainingArguments& args, ThreadPool& pool, TrainObserver& observer, Communicator& comm,
                 const OpsFactory& make_ops)
    : args_(args),
      pool_(&pool),
      comm_(&comm),
      observer_(is_root() ? &observer : &no_observer_),
      network_meter_(comm.rail()),
      loss_spikes_({args.loss_spike_window, args.loss_spike_sigmas}) {
  if (!world().is_single()) slow_ranks_.emplace(world().world_size, SlowRankOptions{});
  record_.arguments = Json::parse(training_arguments_json(args_));  // what follows may fill them in
  comm_->position().set_folder(std::filesystem::absolute(args_.output_dir));
  mark_work("preparing");
  record_.launch_id = args_.launch_id;
  if (is_root()) {
    check_can_write_in(args_.output_dir);
    check_spares_model(args_.output_dir, args_.model);
  }
  const PatientScope patience(*comm_);
  check_output_is_shared();
  open_model(make_ops);
  open_snapshots();
  choose_checkpoint();
  open_datasets();
  plan_steps();
  plan_disk_use();
  plan_memory_use();
  allocate_and_load();
}

Trainer::~Trainer() = default;

void Trainer::open_model(const OpsFactory& make_ops) {
  check_is_model_folder(args_.model);
  const ModelConfig config = read_model_config(args_.model);
  model_file_ = SafetensorsModel::open(args_.model);
  ops_ = make_ops(*pool_);
  model_ = std::make_unique<Model>(config, args_.training_dtype(), *ops_);
  run_plan_.num_parameters = model_->layout().num_parameters();
  run_plan_.operations = ops_->description();
  run_plan_.num_threads = pool_->num_threads();
  measure_peak();
}

// All ranks at the same time, each on its own processors: what they reach together.
void Trainer::measure_peak() {
  if (args_.measure_peak) peak_.emplace(*pool_, model_->dtype());
  const bool has_peak = peak_ && peak_->best();
  std::array<double, 2> sums = {has_peak ? peak_->best_tflops() : 0, has_peak ? 1.0 : 0.0};
  comm_->all_reduce_sum(sums, {"arithmetic peak"});
  if (sums[1] < world().world_size) return peak_.reset();
  run_plan_.peak = peak_->best();
  run_plan_.peak->tflops = peak_tflops_ = sums[0];
}

std::filesystem::path Trainer::tokenizer_folder() const {
  return args_.tokenizer.empty() ? args_.model : args_.tokenizer;
}

// Unless given: 1024 tokens, rows of token ids uncut, neither beyond the model's positions.
int64_t Trainer::max_length() const {
  constexpr int64_t kDefault = 1024;
  const int64_t positions = model_->config().max_position_embeddings;
  if (args_.max_length) return *args_.max_length;
  return needs_tokenizer(args_.dataset) ? std::min(kDefault, positions) : positions;
}

Dataset Trainer::open_dataset(const std::vector<std::string>& files, const Tokenizer* tokenizer,
                              const std::string& what) {
  DatasetOptions options;
  options.files = files;
  options.text_column = args_.text_column;
  options.text_per_line = args_.text_per_line;
  options.max_length = max_length();
  options.allow_truncation = args_.allow_truncation;
  options.packing = args_.packing_mode();
  options.add_special_tokens = args_.add_special_tokens;
  options.skip_invalid_utf8 = args_.skip_invalid_utf8;
  options.cache_folder = args_.cache_dir;
  return Dataset::open(options, tokenizer, model_->config().vocab_size, *pool_, [&](double fraction) {
    comm_->failures().check();  // perhaps of the rank that this one waits for
    observer_->on_progress(what, fraction);
  });
}

void Trainer::open_datasets() {
  mark_work("reading the dataset");
  if (max_length() > model_->config().max_position_embeddings) {
    log_warning("max_length {} is above max_position_embeddings {} of {}", max_length(),
                model_->config().max_position_embeddings, args_.model);
  }
  // The tokenizer is not needed once the rows are made.
  std::optional<Tokenizer> tokenizer;
  if (needs_tokenizer(args_.dataset) || (args_.evaluates() && needs_tokenizer(args_.eval_dataset))) {
    tokenizer = Tokenizer::open(tokenizer_folder());
  }
  const Tokenizer* shared = tokenizer ? &*tokenizer : nullptr;
  dataset_ = open_dataset(args_.dataset, shared, "reading dataset");
  if (args_.evaluates()) eval_dataset_ = open_dataset(args_.eval_dataset, shared, "reading eval_dataset");
  for (const std::optional<Dataset>* dataset : {&dataset_, &eval_dataset_}) {
    if (!*dataset) continue;
    for (const std::string& warning : (*dataset)->report().warnings) log_warning("{}", warning);
  }
  run_plan_.num_rows = dataset_->num_rows();
  run_plan_.num_tokens = dataset_->num_tokens();
  run_plan_.eval_rows = eval_dataset_ ? eval_dataset_->num_rows() : 0;
}

void Trainer::plan_steps() {
  BatchPlanOptions options = args_.batch_options(world().world_size);
  options.num_rows = dataset_->num_rows();
  record_.world_size = world().world_size;
  record_.model = model_shape(model_->config());
  record_.data = data_record(*dataset_, max_length(), args_.packing_mode(), options);
  if (resume_) options = go_on_with_batches(options);
  check_enough_rows(options, ways_to_more_rows(args_));
  batch_plan_.emplace(options);
  step_rows_ = global_batch_rows(options);
  micro_batch_rows_ = micro_batch_rows(options);

  const int64_t steps_per_epoch = batch_plan_->steps_per_epoch();
  const int64_t max_steps =
      args_.max_steps > 0 ? args_.max_steps : batch_plan_->steps_for_epochs(args_.num_train_epochs);
  const int64_t num_warmup_steps = args_.num_warmup_steps(max_steps);
  if (num_warmup_steps >= max_steps && num_warmup_steps > 0) {
    log_warning("the warm-up of {} is not over when the run ends after {}",
                count_of(num_warmup_steps, "step"), max_steps);
  }
  actions_.emplace(args_, steps_per_epoch, max_steps);
  schedule_ = make_schedule(
      {args_.lr_scheduler_type, args_.lr_scheduler_kwargs, args_.learning_rate, num_warmup_steps, max_steps});
  schedule_->betas(max_steps - 1);  // refuses a momentum that grows out of range before the first step

  run_plan_.steps_per_epoch = steps_per_epoch;
  run_plan_.max_steps = max_steps;
  run_plan_.num_warmup_steps = num_warmup_steps;
  plan_passes();
  state_.max_steps = max_steps;
  state_.num_train_epochs = (max_steps + steps_per_epoch - 1) / steps_per_epoch;
  state_.train_batch_size = args_.per_device_train_batch_size;
  state_.logging_steps = actions_->logging_steps();
  state_.eval_steps = actions_->eval_steps();
  state_.save_steps = actions_->save_steps();
}

// The largest pass decides the memory. How many micro-batches make a pass is decided for the largest of them.
void Trainer::plan_passes() {
  constexpr int64_t kUncut = std::numeric_limits<int64_t>::max();
  dealer_.emplace(Dealing::kByCost, world().world_size, run_plan_.micro_batches_per_pass);
  run_plan_.max_pass_tokens = largest_pass();
  if (args_.merge_micro_batches == "never" || args_.gradient_accumulation_steps == 1) return;
  const ActivationLimits micro_batch = limits_for(micro_batch_rows_, kUncut, args_.gradient_checkpointing);
  run_plan_.micro_batches_per_pass =
      args_.merge_micro_batches == "always"
          ? args_.gradient_accumulation_steps
          : micro_batches_per_pass(*model_, micro_batch, args_.gradient_accumulation_steps);
  dealer_.emplace(Dealing::kByCost, world().world_size, run_plan_.micro_batches_per_pass);
  run_plan_.max_pass_tokens = largest_pass();
}

// In tokens. Steps without targets are found here, before the first one. Without shuffle all epochs are
// alike.
int64_t Trainer::largest_pass() {
  StepSurvey survey;
  survey.num_steps =
      args_.shuffle ? run_plan_.max_steps : std::min(run_plan_.max_steps, batch_plan_->steps_per_epoch());
  survey.step_rows = step_rows_;
  survey.max_pass_rows = micro_batch_rows_ * run_plan_.micro_batches_per_pass;
  survey.num_rows = dataset_->num_rows();
  survey.max_row_length = dataset_->max_row_length();
  survey.row_length = [this](int64_t row) { return dataset_->row_length(row); };
  survey.largest_pass_of = [this](int64_t step) {
    const RowLists& passes = passes_of_step(step);
    count_targets(passes);
    int64_t largest = 0;
    for (int64_t pass = 0; pass < passes.size(); ++pass) {
      int64_t num_tokens = 0;
      for (const int64_t row : passes[pass]) num_tokens += dataset_->row_length(row);
      largest = std::max(largest, num_tokens);
    }
    return largest;
  };
  survey.asks_every_step = dataset_->has_rows_without_targets();
  return tessera::largest_pass(survey);
}

// Evaluation batches are cut to what training needs anyway; only a longer row asks for more.
ActivationLimits Trainer::limits_for(int64_t batch_size, int64_t max_row_length,
                                     bool gradient_checkpointing) const {
  const int64_t train_row = std::min(dataset_->max_row_length(), max_row_length);
  const int64_t eval_row = eval_dataset_ ? std::min(eval_dataset_->max_row_length(), max_row_length) : 0;
  ActivationLimits limits;
  limits.max_tokens = std::max(std::min(run_plan_.max_pass_tokens, batch_size * train_row), eval_row);
  limits.max_sequence_length = std::max(train_row, eval_row);
  limits.training = true;
  limits.gradient_checkpointing = gradient_checkpointing;
  limits.pack_weights = args_.pack_weights == "always";
  return limits;
}

// All ranks, or none.
bool Trainer::fits_everywhere(const MemoryRequest& request) {
  std::array<double, 1> num_without_room = {needed_bytes(*model_, request) > run_plan_.free_bytes ? 1.0
                                                                                                  : 0.0};
  comm_->all_reduce_sum(num_without_room, {"memory plan"});
  return num_without_room[0] == 0;
}

// A run that has begun goes on as far as it gets: space may be freed meanwhile.
void Trainer::plan_disk_use() {
  if (!is_root()) return;
  CheckpointCount count = {actions_->num_saves(resume_ ? resume_->record.progress.step : 0),
                           args_.save_total_limit, 0};
  if (resumes_in_place()) count.num_present = num_checkpoints_in(args_.output_dir);
  run_plan_.disk = plan_disk(run_plan_.num_parameters, args_.export_dtype(), count);
  run_plan_.disk.free_bytes = free_disk_bytes(args_.output_dir);
  const std::string refusal = disk_refusal(run_plan_.disk, args_.output_dir);
  if (!refusal.empty() && !resume_) fail(ExitCode::kBadConfig, "{}", refusal);
  const std::string warning = refusal.empty() ? disk_warning(run_plan_.disk, args_.output_dir) : refusal;
  if (!warning.empty()) log_warning("{}", warning);
}

MemoryRequest Trainer::memory_request() {
  constexpr int64_t kUncut = std::numeric_limits<int64_t>::max();
  MemoryRequest request;
  request.limits =
      limits_for(micro_batch_rows_ * run_plan_.micro_batches_per_pass, kUncut, args_.gradient_checkpointing);
  const std::optional<ProportionalMemory> resident = proportional_memory();
  request.baseline_bytes = resident ? resident->private_bytes() + resident->shared_bytes : resident_bytes();
  request.num_nodes = world().num_nodes;
  request.local_world_size = world().local_world_size;
  request.first_rank_exports = !output_is_shared_;
  request.export_bytes = export_bytes(model_->layout(), args_.export_dtype(), request);
  request.connections = static_cast<int>(args_.connections);
  request.peer_snapshots = snapshots_.has_value();
  request.zero = zero_settings_of(args_, model_->config(),
                                  (args_.gradient_accumulation_steps + run_plan_.micro_batches_per_pass - 1) /
                                      run_plan_.micro_batches_per_pass);
  return request;
}

void Trainer::plan_memory_use() {
  MemoryRequest request = memory_request();
  run_plan_.free_bytes = memory_info().free_for_process_bytes;
  // What a former start has left is used again.
  if (snapshots_) run_plan_.free_bytes += snapshots_->held_bytes_of_node();
  if (may_gather_per_layer(args_, world().num_nodes) && !fits_everywhere(request)) {
    request.zero.schedule = GatherSchedule::kPerLayer;
  }
  check_packed_weights(*model_, request);
  if (args_.pack_weights == "auto" && can_keep_packed_weights(*model_, request)) {
    request.limits.pack_weights = true;
    request.limits.pack_weights = fits_everywhere(request);
  }
  limits_ = request.limits;
  zero_settings_ = request.zero;
  if (args_.saves_in_background()) {
    request.snapshot_bytes = snapshot_bytes(*model_, request, run_plan_.free_bytes);
  }
  snapshot_bytes_ = request.snapshot_bytes;
  run_plan_.memory = plan_memory(*model_, request);
  run_plan_.zero = zero_settings(*model_, request);
  run_plan_.wire = wire_bytes_per_step(
      zero_layout(model_->layout(), world().num_nodes, world().local_world_size), run_plan_.zero, 0);
  observer_->on_plan(run_plan_);
  const MemoryChoices choices = {micro_batch_rows_, run_plan_.micro_batches_per_pass,
                                 std::bind_front(&Trainer::limits_for, this),
                                 args_.global_batch_size.has_value()};
  check_memory_fits(*model_, request, run_plan_.free_bytes, memory_alternatives(request, choices));
}

void Trainer::allocate_and_load() {
  mark_work("loading the weights");
  const AdamWOptions options = {args_.adam_beta1, args_.adam_beta2, args_.adam_epsilon, args_.weight_decay};
  parameters_ =
      make_parameter_state(*model_, zero_settings_, options, args_.weight_decay_norms, *comm_, *pool_);
  model_->reserve(limits_);
  const LoadOnce once = args_.load_weights_once == "per_cluster" ? LoadOnce::kPerCluster : LoadOnce::kPerNode;
  if (resume_) {
    load_checkpoint();
    restore_progress();
  } else {
    parameters_->load(*model_file_, once, [this](const LoadProgress& progress) {
      observer_->on_loading(progress.fraction(), progress.bytes_per_second());
    });
  }
  model_file_.reset();
  loading_peak_bytes_ = peak_resident_bytes();
  const WriteOptions write = {.snapshot_bytes = snapshot_bytes_,
                              .max_bytes_per_second = args_.save_bytes_per_second() / world().world_size};
  saver_.emplace(*comm_, *pool_, *parameters_, write);
  if (snapshots_) snapshots_->open(model_->layout(), *parameters_);
  model_->call_between_layers([this](int64_t group, WeightUse use) {
    mark_layer(group, use);
    return go_on_computing();
  });
}

// Every node writes its part of a checkpoint.
void Trainer::check_output_is_shared() {
  if (world().num_nodes == 1 || is_shared_by_nodes(*comm_, args_.output_dir)) return;
  if (args_.save_strategy != "no") {
    fail(ExitCode::kBadConfig,
         "output_dir {}: not the same folder on all nodes, of which each writes its part of a checkpoint: "
         "take one on a file system that they share, or save_strategy no",
         args_.output_dir);
  }
  output_is_shared_ = false;
  if (is_root()) {
    log_warning("output_dir {}: not the same folder on all nodes: a signal ends the run without a checkpoint",
                args_.output_dir);
  }
}

}  // namespace tessera
