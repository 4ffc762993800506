#include "train/setup/run_inputs.h"

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "formats/file_kind.h"
#include "io/absolute_path.h"
#include "io/file.h"
#include "model/families/families.h"
#include "report/run_phase.h"
#include "report/sinks/sinks.h"
#include "settings/derived.h"
#include "settings/fsdp/fsdp_settings.h"
#include "train/output/output_folder.h"
#include "train/output/shared_folder.h"
#include "train/setup/run_planning.h"

namespace tessera {
namespace {

// Whether all nodes see output_dir: every node writes its part of a checkpoint. Collective.
bool check_output_is_shared(const std::string& output_dir, const SavingSpec& saving, Communicator& comm) {
  if (comm.world().num_nodes == 1 || is_shared_by_nodes(comm, output_dir)) return true;
  if (saving.strategy != SaveStrategy::kNo) {
    fail(ExitCode::kBadConfig,
         "output_dir {}: not the same folder on all nodes, of which each writes its part of a checkpoint: "
         "take one on a file system that they share, or save_strategy no",
         output_dir);
  }
  if (comm.world().rank == 0) {
    log_warning("output_dir {}: not the same folder on all nodes: a signal ends the run without a checkpoint",
                output_dir);
  }
  return false;
}

std::string job_name(const World& world, const std::string& output_dir) {
  return fmt::format("{}\n{}", world.run_id, absolute_path(output_dir).native());
}

}  // namespace

RunInputs::RunInputs(const RunSpec& spec, ThreadPool& thread_pool, TrainObserver& observer,
                     Communicator& communicator, const OpsFactory& make)
    : asked(spec), pool(thread_pool), comm(communicator) {
  if (is_root() || observer.is_for_every_rank()) observers.add(observer);
  record.arguments = training_arguments(spec);  // later code may fill them in
  record.launch_id = spec.launch.id;
  record.world_size = world().world_size;
  comm.position().set_folder(absolute_path(spec.output_dir));
  mark_phase(comm, RunPhase::kPreparing, 1);
  if (is_root()) {
    check_can_write_in(spec.output_dir);
    check_spares_model(spec.output_dir, spec.model.folder);
    check_sinks(spec.reporting, process_environment());
  }
  const PatientScope patience(comm);
  output_is_shared = check_output_is_shared(spec.output_dir, spec.saving, comm);
  open_model(make);
  // The state of another optimizer is of no use.
  if (spec.saving.peer_snapshot_steps > 0) {
    snapshots.emplace(comm, pool,
                      fmt::format("{}\n{}", job_name(world(), spec.output_dir), spec.optimizer.form));
  }
  resume.emplace(asked, comm, snapshots ? &*snapshots : nullptr);
  data = open_training_data(spec, model->config(), pool, comm, observers, resumed_rows());
  open_choices();
  plan_steps_of(*this);
}

// Before there were strategies, documents were packed in order, whatever they were rows of.
ResumedRows RunInputs::resumed_rows() const {
  if (!*resume) return {};
  const DataRecord& then = resume->record().data;
  const bool is_asked_to_pack = asked.data.packing && !asked.sources.given.contains("packing_strategy");
  return {.splits_packed_rows = !then.splits_documents,
          .packs_in_order = is_asked_to_pack && then.packing == "isolated"};
}

void RunInputs::open_model(const OpsFactory& make) {
  check_is_model_folder(asked.model.folder);
  ModelConfig config = read_model_config(asked.model.folder);
  check_wrapped_classes(asked.sources.fsdp, config);
  config.lora = lora_config_of(asked.lora, asked.model, config);
  config.base_quantization = base_quantization_of(asked.base);
  model_file = SafetensorsModel::open(asked.model.folder);
  ops = make ? make(pool) : make_ops(asked.machine.device, pool, world().local_rank);
  clocked_ops.emplace(*ops);
  if (asked.sharding.context_parallel_size > 1) {
    context.emplace(*clocked_ops, context_team(world(), asked.sharding.context_parallel_size));
  }
  model = make_model(config, asked.precision.dtype, model_ops());
  plan.num_parameters = model->layout().num_parameters();
  plan.num_frozen = frozen_parameters(*model);
  plan.operations = ops->description();
  plan.num_threads = pool.num_threads();
  peak.emplace(asked.reporting.measure_peak, *ops, pool, model->dtype(), comm);
  plan.peak = peak->at_start();
}

void RunInputs::set_base_quantization(Quantization quantization) {
  ModelConfig config = model->config();
  if (config.base_quantization == quantization) return;
  config.base_quantization = quantization;
  model = make_model(config, asked.precision.dtype, model_ops());
}

void RunInputs::open_choices() {
  if (!asked.evaluation.evaluates() || asked.evaluation.choices.empty()) return;
  const ModelConfig& config = model->config();
  if (config.encoder_decoder || config.encoder)
    fail(ExitCode::kBadConfig, "eval_choices: choices are compared as continuations of a decoder alone");
  const Tokenizer tokenizer = Tokenizer::open(tokenizer_folder(asked.model));
  choices = ChoiceSet::open(asked.evaluation.choices, tokenizer, asked.data.add_special_tokens,
                            config.max_position_embeddings, config.vocab_size);
  if (choices->num_cut_contexts() > 0) {
    log_warning("eval_choices: {}", choices->cut_contexts_text(config.max_position_embeddings));
  }
}

}  // namespace tessera
