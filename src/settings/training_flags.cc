// Binds the lines of fields.tsv to the members of a RunSpec, in the order of the help.
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "optim/schedule.h"
#include "settings/compat/compat_flags.h"
#include "settings/deepspeed/deepspeed_settings.h"
#include "settings/fields/fields.h"
#include "settings/foreign/script_settings.h"
#include "settings/fsdp/fsdp_settings.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/report_settings.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

void declare_model_and_data(FlagTable* table, RunSettings* spec) {
  table->begin_section("Model and data");
  add_field(table, "model", &spec->model.folder).required = true;
  add_field(table, "tokenizer", &spec->model.tokenizer);
  DataSpec& data = spec->data;
  Flag& dataset = add_field(table, "dataset", &data.dataset);
  dataset.required = true;
  dataset.required_unless = "dataset_spool";
  add_field(table, "dataset_spool", &data.dataset_spool);
  Flag& evaluation = add_field(table, "eval_dataset", &data.eval_dataset);
  evaluation.set = [set = evaluation.set](const std::vector<std::string>& values) {
    const bool is_object = values.size() == 1 && values[0].starts_with('{');
    set(is_object ? entries_of_sets(values[0], "eval_dataset") : values);
  };
  add_field(table, "validation_split_percentage", &data.validation_split_percentage);
  add_field(table, "streaming", &data.streaming);
  add_field(table, "streaming_buffer_rows", &data.streaming_buffer_rows);
  declare_data_flags(table, &data);
  declare_max_length(table, &data.max_length);
  add_field(table, "allow_truncation", &data.allow_truncation);
  add_field(table, "packing", &data.packing);
  add_field(table, "packing_strategy", &data.packing_strategy);
  add_field(table, "packing_cross_document_attention", &data.packing_cross_document_attention);
  add_field(table, "eval_packing", &data.eval_packing);
  add_field(table, "shuffle", &data.shuffle);
  add_field(table, "train_sampling_strategy", &data.sampling_strategy);
  add_field(table, "dataloader_drop_last", &data.drop_last);
  add_field(table, "cache_dir", &data.cache_dir);
  add_field(table, "config", &spec->sources.config).lone_endings = {".yaml", ".yml", ".json"};
  add_field(table, "deepspeed", &spec->sources.deepspeed);
  add_field(table, "ds_compat", &spec->sources.ds_compat, deepspeed_releases());
}

void declare_batch(FlagTable* table, RunSettings* spec) {
  table->begin_section("Batch and length of the run");
  BatchSpec& batch = spec->batch;
  add_field(table, "per_device_train_batch_size", &batch.rows_per_device);
  add_field(table, "per_device_eval_batch_size", &spec->evaluation.rows_per_device);
  add_field(table, "gradient_accumulation_steps", &batch.accumulation_steps);
  add_field(table, "average_tokens_across_devices", &spec->objective.average_tokens_across_devices);
  add_field(table, "global_batch_size", &batch.global_rows);
  add_field(table, "num_train_epochs", &batch.num_epochs);
  Flag& max_steps = add_field(table, "max_steps", &batch.max_steps);
  max_steps.set = [set = max_steps.set, &steps = batch.max_steps](const std::vector<std::string>& values) {
    set(values);
    if (steps == -1 || steps >= 1) return;
    fail(ExitCode::kUsage, "--max_steps: expected at least 1, or -1 to follow num_train_epochs, found {}",
         steps);
  };
}

std::string without_case_and_underscores(std::string_view name) {
  std::string out = lower_case(std::string(name));
  std::erase(out, '_');
  return out;
}

void declare_optim(FlagTable* table, OptimizerSpec* optimizer) {
  Flag& flag = add_field(table, "optim", &optimizer->form);
  flag.set = [set = flag.set](const std::vector<std::string>& values) {
    if (values.size() != 1) return set(values);
    for (const auto& word : choice_words(OptimizerForm())) {
      if (without_case_and_underscores(word.text) != without_case_and_underscores(values[0])) continue;
      return set({std::string(word.text)});
    }
    fail(ExitCode::kUsage,
         "--optim {} is not supported: use adamw_torch, adamw_bf16 (half the memory for moments), adamw_8bit "
         "(a quarter), lion_32bit, lion_8bit, muon or adafactor",
         printable(values[0]));
  };
}

void declare_schedule(FlagTable* table, ScheduleForm* form) {
  const auto type = std::make_shared<ScheduleType>(schedule_type(*form));
  Flag& flag = add_field(table, "lr_scheduler_type", type.get());
  flag.set = [set = flag.set, type, form](const std::vector<std::string>& values) {
    set(values);
    *form = schedule_of(*type);
  };
  flag.get = [form] { return std::vector<std::string>{std::string(word_of(schedule_type(*form)))}; };
}

// A setting that is given as JSON, which `parse` takes; "" = none.
void add_json_field(FlagTable* table, const std::string& name, SettingSources* sources,
                    std::function<void(const std::string&)> parse) {
  const auto set = [=, parse = std::move(parse)](const std::string& text) {
    parse(text);
    sources->json_texts[name] = text;
  };
  const auto get = [=] {
    const auto text = sources->json_texts.find(name);
    return text == sources->json_texts.end() ? "" : text->second;
  };
  run_fields().complete(table->add_parsed(name, set, get, run_fields().help_of(name)));
}

void declare_optimizer(FlagTable* table, RunSettings* spec) {
  table->begin_section("Optimizer");
  OptimizerSpec& optimizer = spec->optimizer;
  declare_optim(table, &optimizer);
  add_field(table, "learning_rate", &spec->schedule.learning_rate);
  declare_schedule(table, &spec->schedule.form);
  add_json_field(table, "lr_scheduler_kwargs", &spec->sources,
                 [](const std::string&) {});  // resolve_schedule()
  add_field(table, "warmup_steps", &spec->schedule.warmup_steps);
  add_field(table, "warmup_ratio", &spec->schedule.warmup_ratio);
  add_field(table, "weight_decay", &optimizer.weight_decay);
  add_field(table, "weight_decay_norms", &optimizer.weight_decay_norms);
  add_field(table, "adam_beta1", &optimizer.beta1);
  add_field(table, "adam_beta2", &optimizer.beta2);
  add_field(table, "adam_epsilon", &optimizer.epsilon);
  add_field(table, "muon_momentum", &optimizer.muon_momentum);
  add_field(table, "muon_adjust_lr_fn", &optimizer.muon_rate);
  add_field(table, "max_grad_norm", &spec->clipping.max_norm);
  add_field(table, "optimizer_in_backward", &spec->placement.optimizer_in_backward);
  add_field(table, "clip_mode", &spec->clipping.mode);
  add_field(table, "loss_spike_policy", &spec->guards.loss_spike_policy);
  add_field(table, "loss_spike_window", &spec->guards.loss_spike_window);
  add_field(table, "loss_spike_sigmas", &spec->guards.loss_spike_sigmas);
  add_field(table, "replay_check_steps", &spec->guards.replay_check_steps);
  add_field(table, "label_smoothing_factor", &spec->objective.label_smoothing);
  add_field(table, "neftune_noise_alpha", &spec->objective.neftune_alpha);
  add_field(table, "seed", &spec->seed);
  add_field(table, "data_seed", &spec->data.seed);
}

void declare_adapters(FlagTable* table, RunSettings* spec) {
  table->begin_section("LoRA");
  LoraSpec& lora = spec->lora;
  respell(add_field(table, "finetuning_type", &lora.finetuning_type), {{"lora", "lora"}});  // LORA in PEFT
  add_field(table, "lora_rank", &lora.rank);
  add_field(table, "lora_alpha", &lora.alpha);
  add_field(table, "lora_dropout", &lora.dropout);
  add_field(table, "lora_target", &lora.targets);
  add_field(table, "exclude_modules", &lora.exclude_modules);
  add_field(table, "layers_to_transform", &lora.layers_to_transform);
  add_field(table, "layers_pattern", &lora.layers_pattern);
  add_field(table, "use_rslora", &lora.use_rslora);
  add_json_field(table, "rank_pattern", &spec->sources,
                 [&lora](const std::string& text) { lora.rank_pattern = parse_rank_pattern(text); });
  add_json_field(table, "alpha_pattern", &spec->sources,
                 [&lora](const std::string& text) { lora.alpha_pattern = parse_alpha_pattern(text); });
  add_field(table, "adapter_name_or_path", &lora.adapter);
  add_field(table, "quantization_bit", &spec->base.bits);
  add_field(table, "load_in_8bit", &spec->base.load_in_8bit);
  add_field(table, "load_in_4bit", &spec->base.load_in_4bit);
  add_field(table, "bnb_4bit_quant_type", &spec->base.quant_type);
  add_field(table, "bnb_4bit_use_double_quant", &spec->base.double_quant);
}

void declare_precision(FlagTable* table, RunSettings* spec) {
  table->begin_section("Precision and machine");
  PrecisionSpec& precision = spec->precision;
  Flag& dtype = add_field(table, "dtype", &precision.dtype, kTrainingDTypeWords);
  dtype.set = [set = dtype.set](const std::vector<std::string>& values) {
    if (values == std::vector<std::string>{"float16"})
      fail(ExitCode::kUsage, "--dtype float16 is not supported: use bfloat16, which needs no loss scaling");
    set(values);
  };
  respell(add_field(table, "bf16", &precision.bf16), {{"auto", "none"}});
  add_field(table, "bf16_full_eval", &precision.bf16_full_eval);
  add_field(table, "save_dtype", &precision.save_dtype, kSavedDTypeWords);
  add_field(table, "device", &spec->machine.device);
  add_field(table, "num_threads", &spec->machine.num_threads);
  add_field(table, "measure_peak", &spec->reporting.measure_peak);
}

void declare_placement(FlagTable* table, PlacementSpec* placement) {
  table->begin_section("Training in little memory");
  add_field(table, "gradient_checkpointing", &placement->gradient_checkpointing);
  add_field(table, "gradient_checkpointing_mode", &placement->checkpointing_mode);
  add_field(table, "merge_micro_batches", &placement->merge_micro_batches);
  add_field(table, "pack_weights", &placement->pack_weights);
  add_field(table, "offload_optimizer_device", &placement->optimizer_device);
  add_field(table, "offload_param_device", &placement->param_device);
  add_field(table, "offload_dir", &placement->offload_dir);
  add_field(table, "aio_block_size", &placement->transfers.block_bytes);
  add_field(table, "aio_queue_depth", &placement->transfers.queue_depth);
  add_field(table, "fit", &placement->fit);
  add_field(table, "fit_choice", &placement->fit_choice);
  run_fields().add_size(table, "fit_memory", &placement->fit_memory_bytes, "24GiB");
  run_fields().add_size(table, "fit_disk", &placement->fit_disk_bytes, "80GB");
}

void declare_ranks(FlagTable* table, RunSettings* spec) {
  table->begin_section("Several ranks");
  ShardingSpec& sharding = spec->sharding;
  add_field(table, "zero_stage", &sharding.stage);
  declare_fsdp_flags(table, spec);
  add_field(table, "gather_schedule", &sharding.gather_schedule);
  add_field(table, "grad_accum_dtype", &sharding.grad_accum_dtype, kAccumulationDTypeWords);
  add_field(table, "zero_quantized_weights", &sharding.quantized_weights);
  add_field(table, "zero_quantized_gradients", &sharding.quantized_gradients, kGradientCodeWords);
  add_field(table, "load_weights_once", &sharding.load_once);
  OuterSettings& outer = spec->outer;
  add_field(table, "sync_every", &outer.sync_every);
  add_field(table, "num_fragments", &outer.num_fragments);
  add_field(table, "fragment_sync_delay", &outer.sync_delay);
  add_field(table, "fragment_update_alpha", &outer.update_alpha);
  add_field(table, "outer_learning_rate", &outer.learning_rate);
  add_field(table, "outer_momentum", &outer.momentum);
  add_field(table, "context_parallel_size", &sharding.context_parallel_size);
  add_field(table, "expert_parallel", &sharding.expert_parallel);
  add_field(table, "ddp_timeout", &spec->network.timeout_s);  // LLaMA-Factory's files ask for 180000000
  add_field(table, "connections", &spec->network.connections);
  run_fields().complete(table->add_parsed(
      "fabric", [&fabric = spec->network.fabric](const std::string& text) { fabric = parse_fabric(text); },
      [&fabric = spec->network.fabric] { return fabric_name(fabric); }, run_fields().help_of("fabric")));
  add_field(table, "interface", &spec->network.interface);
}

void declare_evaluation(FlagTable* table, RunSettings* spec) {
  table->begin_section("Logging and evaluation");
  ReportingSpec& reporting = spec->reporting;
  add_field(table, "logging_strategy", &reporting.logging_strategy);
  add_field(table, "logging_steps", &reporting.logging_steps);
  add_field(table, "logging_first_step", &reporting.logging_first_step);
  respell(add_field(table, "include_num_input_tokens_seen", &reporting.tokens_seen),
          {{"true", "all"}, {"false", "no"}});
  add_field(table, "disable_tqdm", &reporting.disable_tqdm);
  add_field(table, "log_level", &reporting.log_level, kLogLevelWords);
  add_field(table, "quiet", &reporting.quiet);
  EvaluationSpec& evaluation = spec->evaluation;
  add_field(table, "eval_strategy", &evaluation.strategy);
  add_field(table, "eval_steps", &evaluation.steps);
  add_field(table, "eval_delay", &evaluation.delay);
  add_field(table, "eval_on_start", &evaluation.on_start);
  add_field(table, "eval_choices", &evaluation.choices);
  std::vector<std::string> metrics = {"loss", "loss_per_token", "perplexity", "choices_accuracy",
                                      "choices_accuracy_norm"};
  for (size_t i = 0; i < 5; ++i) metrics.push_back("eval_" + metrics[i]);
  metrics.push_back("none");
  Flag& metric = add_field(table, "metric_for_best_model", &evaluation.metric, metrics);
  metric.set = [set = metric.set, &word = evaluation.metric](const std::vector<std::string>& values) {
    if (values.size() == 1 && may_be_metric_of_set(values[0])) {
      word = values[0];
      return;
    }
    set(values);
    if (word == "none") word.clear();
  };
  add_field(table, "greater_is_better", &evaluation.greater_is_better);
  add_field(table, "load_best_model_at_end", &evaluation.load_best_model);
  add_field(table, "early_stopping_patience", &evaluation.early_stopping_patience);
  add_field(table, "early_stopping_threshold", &evaluation.early_stopping_threshold);
}

void declare_reports(FlagTable* table, ReportingSpec* reporting) {
  const auto report_to = [reporting](const std::vector<std::string>& values) {
    reporting->report_to = read_report_to(values);
  };
  run_fields().complete(table->add_parsed_list(
      "report_to", report_to, [reporting] { return report_to_words(reporting->report_to); },
      run_fields().help_of("report_to")));
  add_field(table, "logging_dir", &reporting->logging_dir);
  add_field(table, "run_name", &reporting->run_name);
  add_field(table, "metrics_port", &reporting->metrics_port);
  Flag& host = add_field(table, "metrics_host", &reporting->metrics_host);
  host.set = [set = host.set](const std::vector<std::string>& values) {
    // getaddrinfo() would take it for all addresses of the machine.
    if (values == std::vector<std::string>{""})
      fail(ExitCode::kUsage,
           "--metrics_host: expected an address of this machine, found nothing; 0.0.0.0 is all");
    set(values);
  };
  add_field(table, "health_timeout", &reporting->health_timeout_s);
}

void declare_saving(FlagTable* table, RunSettings* spec) {
  table->begin_section("Output");
  Flag& output = add_field(table, "output_dir", &spec->output_dir);
  output.set = [set = output.set, &path = spec->output_dir](const std::vector<std::string>& values) {
    set(values);
    if (path.empty()) fail(ExitCode::kUsage, "--output_dir: expected a folder, found ''");
    // Hugging Face's Trainer does the same: shells expand "~" neither in files nor after "--output_dir=".
    const char* home = std::getenv("HOME");
    if (home != nullptr && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
  };
  SavingSpec& saving = spec->saving;
  add_field(table, "save_strategy", &saving.strategy);
  add_field(table, "save_steps", &saving.steps);
  add_field(table, "save_total_limit", &saving.total_limit);
  add_field(table, "async_save", &saving.in_background);
  run_fields().add_size(table, "save_rate_limit", &saving.bytes_per_second, "200MB or 1GiB");
  add_field(table, "peer_snapshot_steps", &saving.peer_snapshot_steps);
  run_fields().complete(table->add_parsed(
      "resume_from_checkpoint",
      [&resume = spec->resume](const std::string& text) { resume = parse_resume(text); },
      [&resume = spec->resume] { return resume_text(resume); },
      run_fields().help_of("resume_from_checkpoint")));
  add_field(table, "save_on_sigterm", &saving.on_sigterm);
  add_field(table, "grace_period_s", &spec->grace_period_s);
}

}  // namespace

void declare_training_flags(FlagTable* table, RunSettings* spec) {
  declare_model_and_data(table, spec);
  declare_batch(table, spec);
  declare_optimizer(table, spec);
  declare_adapters(table, spec);
  declare_precision(table, spec);
  declare_placement(table, &spec->placement);
  declare_ranks(table, spec);
  declare_evaluation(table, spec);
  declare_reports(table, &spec->reporting);
  declare_saving(table, spec);
  declare_script_flags(table, spec);
  declare_compat_flags(table);
}

}  // namespace tessera
