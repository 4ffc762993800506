// The flag table of `tessera train`: names, defaults, help, ranges. --help and docs/flags.md show this text.
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "platform/cpu.h"
#include "settings/compat/compat_flags.h"
#include "settings/deepspeed/deepspeed_settings.h"
#include "settings/flag_limits.h"
#include "settings/foreign/script_settings.h"
#include "settings/ranks/context_settings.h"
#include "settings/ranks/outer_settings.h"
#include "settings/run/evaluation_sets.h"
#include "settings/run/evaluation_settings.h"
#include "settings/run/metrics_settings.h"
#include "settings/run/report_settings.h"
#include "settings/run/row_settings.h"
#include "settings/run_settings.h"
#include "settings/state/lora_settings.h"
#include "settings/state/offload_settings.h"
#include "settings/state/optimizer_settings.h"
#include "settings/state/quantization_settings.h"

namespace tessera {
namespace {

// A choice that Hugging Face accepts but that would change the result: refuses it with the reason.
void refuse_choice(Flag& flag, const std::string& choice, const std::string& why) {
  flag.set = [set = flag.set, name = flag.name, choice, why](const std::vector<std::string>& values) {
    if (values.size() == 1 && values[0] == choice) {
      fail(ExitCode::kUsage, "--{} {} is not supported: {}", name, choice, why);
    }
    set(values);
  };
}

void declare_model_and_data(FlagTable* table, RunSpec* args) {
  table->begin_section("Model and data");
  Flag& model =
      table->add("model", &args->model.folder,
                 "Folder of the model to train, in Hugging Face format: config.json and "
                 "model.safetensors, as one file or in shards; or its name on the Hugging Face Hub, "
                 "org/name or org/name@revision.");
  model.aliases = {"model_name_or_path"};
  model.value_name = "DIR";
  model.required = true;
  Flag& tokenizer = table->add(
      "tokenizer", &args->model.tokenizer,
      "Folder with the tokenizer (tokenizer.json), or a name on the Hub. Defaults to the model's.");
  tokenizer.aliases = {"tokenizer_name", "tokenizer_name_or_path"};
  tokenizer.value_name = "DIR";
  Flag& dataset = table->add(
      "dataset", &args->data.dataset,
      "Training data: one or more files, folders or glob patterns. The file name decides the "
      "format: .jsonl, .ndjson and .json hold JSON objects, .csv, .tsv and .parquet tables; .safetensors "
      "holds token ids (input_ids and optionally labels); anything else is UTF-8 text. .gz and .zst behind "
      "these are unpacked. In a folder, only files with the extensions above or .txt, .text, .md, "
      ".markdown, .rst or .tex are read, and no hidden files; a pattern such as 'DIR/**/*.py' selects other "
      "kinds of files below DIR. With weights, as in a.jsonl:0.7 b.parquet:0.3, an epoch takes rows of each "
      "in this proportion, as many as there are until one of them is used up, other ones in every epoch. A "
      "slice takes a part of the rows: a.jsonl[:1000], org/name/train[10%:20%].");
  dataset.aliases = {"train_file"};
  dataset.required = true;
  Flag& evaluation = table->add("eval_dataset", &args->data.eval_dataset,
                                "Evaluation data, given in the same way as dataset. With names, as in "
                                "news=a.jsonl code=b.jsonl, each set is evaluated by itself: its metrics are "
                                "eval_news_loss and so on, and metric_for_best_model names one of them. A "
                                "JSON object {\"news\": \"a.jsonl\"} says the same.");
  evaluation.aliases = {"validation_file"};
  evaluation.set = [set = evaluation.set](const std::vector<std::string>& values) {
    const bool is_object = values.size() == 1 && values[0].starts_with('{');
    set(is_object ? entries_of_sets(values[0], "eval_dataset") : values);
  };
  limit(
      table->add(
          "validation_split_percentage", &args->data.validation_split_percentage,
          "Evaluate on this share of the rows of dataset, the first ones, and train on the others, if there "
          "is no eval_dataset. Where packing_strategy changes the order of the rows, or eval_packing differs "
          "from packing, the rows are split before they are packed."),
      {0, 100, false, true});
  table->add(
      "streaming", &args->data.streaming,
      "Begin to train while the dataset is still being tokenized, in the background. Needs max_steps, as the "
      "number of rows is not known.");
  Flag& buffer = table->add(
      "streaming_buffer_rows", &args->data.streaming_buffer_rows,
      "With streaming, rows that are shuffled together; training begins once this many are tokenized.");
  buffer.aliases = {"buffer_size", "shuffle_buffer_size"};
  limit(buffer, at_least(1));
  declare_data_flags(table, &args->data);
}

// How documents become rows, in which order they are read.
void declare_rows(FlagTable* table, RunSpec* args) {
  declare_max_length(
      table, &args->data.max_length,
      "Tokens per row: longer documents are truncated, and packing fills rows up to this length. "
      "Defaults to 1024, or to the model's max_position_embeddings if that is smaller; by "
      "default, rows of token ids are truncated only at max_position_embeddings.");
  table->add(
      "allow_truncation", &args->data.allow_truncation,
      "Drop the tokens of a document beyond max_length (without packing, the end of every longer document) "
      "even if they are more than a tenth of all tokens. Otherwise that ends the run before the first step.");
  table->add(
      "packing", &args->data.packing,
      "Put several documents, each ended by the end-of-text token, into a row of max_length tokens, as "
      "packing_strategy says. Without packing, every document is its own row; no padding is computed either "
      "way.");
  declare_packing_flags(table, &args->data.packing_strategy, &args->data.packing_cross_document_attention);
  table->add("eval_packing", &args->data.eval_packing, "Pack the rows for evaluation. Defaults to packing.")
      .aliases = {"eval_sample_packing"};
  table->add("shuffle", &args->data.shuffle,
             "Read the rows in a new random order in every epoch: the order Hugging Face's Trainer draws "
             "from the same seed. Otherwise rows are read in file order.");
  table->add_choice("train_sampling_strategy", &args->data.sampling_strategy,
                    "Hugging Face's spelling of shuffle: random is true, sequential is false. "
                    "group_by_length reads rows of similar length one after the other, in the order that "
                    "Hugging Face's Trainer draws from seed; as there is no padding, it saves no time.");
  table->add("dataloader_drop_last", &args->data.drop_last,
             "Drop the last micro-batch of an epoch if it is not full.");
}

void declare_settings_files(FlagTable* table, RunSpec* args) {
  Flag& cache_dir = table->add(
      "cache_dir", &args->data.cache_dir,
      "Folder for cached tokenized datasets. Defaults to $XDG_CACHE_HOME/tessera or ~/.cache/tessera.");
  cache_dir.value_name = "DIR";
  Flag& config =
      table->add("config", &args->sources.config,
                 "JSON or YAML file with settings named like these flags; can also be given without the "
                 "flag: tessera train run.yaml. Flags on the command line override the file.");
  config.value_name = "FILE";
  config.lone_endings = {".yaml", ".yml", ".json"};
  Flag& deepspeed = table->add("deepspeed", &args->sources.deepspeed,
                               "Unmodified DeepSpeed configuration file, or its JSON text, plain or "
                               "base64-encoded. It supplies the values that no flag sets; if a flag and the "
                               "file disagree, the run is refused. docs/deepspeed.md lists every key.");
  deepspeed.value_name = "FILE";
  table
      ->add_choice(
          "ds_compat", &args->sources.ds_compat, deepspeed_releases(),
          "DeepSpeed release that the file was written for; 0.19 is 0.19.8. Where the file has no "
          "gradient_clipping, it is 1 since 0.19.3 and 0 before; warmup_max_lr of WarmupLR is 0.001 in "
          "0.16 and the optimizer's learning rate in 0.19; OneCycle reads its stair counts since "
          "0.19.4.")
      .value_name = "0.16|0.19|0.19.N";
}

void declare_batch(FlagTable* table, RunSpec* args) {
  table->begin_section("Batch and length of the run");
  Flag& train_batch = table->add(
      "per_device_train_batch_size", &args->batch.rows_per_device,
      "Rows in one micro-batch, which goes through the model at once; determines activation memory.");
  train_batch.aliases = {"per_gpu_train_batch_size"};
  limit(train_batch, at_least(1));
  Flag& eval_batch =
      table->add("per_device_eval_batch_size", &args->evaluation.rows_per_device,
                 "Rows in one evaluation batch of a rank, whose mean loss counts once per row in "
                 "eval_loss. Computed in parts if it would need more memory than training does.");
  eval_batch.aliases = {"per_gpu_eval_batch_size"};
  limit(eval_batch, at_least(1));
  limit(table->add("gradient_accumulation_steps", &args->batch.accumulation_steps,
                   "Micro-batches whose gradients are accumulated before each weight update."),
        at_least(1));
  table->add(
      "average_tokens_across_devices", &args->objective.average_tokens_across_devices,
      "Average the loss over all tokens of a step. Otherwise every rank averages over those of its own "
      "rows, and the means of all ranks count the same, however many tokens they have.");
  limit(
      table->add("global_batch_size", &args->batch.global_rows,
                 "Rows in one optimizer step over all ranks, any number: training is then the same on any "
                 "number of ranks. per_device_train_batch_size becomes the upper limit of a micro-batch, and "
                 "gradient_accumulation_steps follows. Without it, a step takes per_device_train_batch_size "
                 "x gradient_accumulation_steps x ranks rows, as in Hugging Face's Trainer."),
      at_least(1));
  limit(table->add("num_train_epochs", &args->batch.num_epochs,
                   "Passes over the dataset; fractions are allowed. max_steps takes precedence."),
        above(0));
  Flag& max_steps =
      table->add("max_steps", &args->batch.max_steps,
                 "Optimizer steps, over as many epochs as needed; -1 follows num_train_epochs.");
  max_steps.set = [set = max_steps.set, args](const std::vector<std::string>& values) {
    set(values);
    if (args->batch.max_steps != -1 && args->batch.max_steps < 1) {
      fail(ExitCode::kUsage, "--max_steps: expected at least 1, or -1 to follow num_train_epochs, found {}",
           args->batch.max_steps);
    }
  };
}

void declare_learning_rate(FlagTable* table, RunSpec* args) {
  limit(table->add("learning_rate", &args->schedule.learning_rate,
                   "Peak learning rate, which the schedule scales."),
        at_least(0));
  table->add_choice("lr_scheduler_type", &args->schedule.type, schedule_names(),
                    "How the learning rate changes over the run, after the warm-up.");
  Flag& kwargs = table->add(
      "lr_scheduler_kwargs", &args->schedule.kwargs,
      "Keyword arguments of the schedule as a JSON object, such as {\"num_cycles\": 2}: num_cycles (cosine, "
      "cosine_with_restarts and others), lr_end and power (polynomial), timescale (inverse_sqrt), min_lr or "
      "min_lr_rate (cosine_with_min_lr, cosine_warmup_with_min_lr), warmup_lr_rate "
      "(cosine_warmup_with_min_lr), num_decay_steps, num_stable_steps, warmup_type, decay_type and "
      "min_lr_ratio (warmup_stable_decay), mode, factor, patience, threshold, threshold_mode, cooldown, "
      "min_lr and eps (reduce_lr_on_plateau); those of DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR, "
      "LRRangeTest and OneCycle are in docs/deepspeed.md.");
  kwargs.value_name = "JSON";
  Flag& warmup = table->add("warmup_steps", &args->schedule.warmup_steps,
                            "Steps over which the learning rate rises to its peak; a value below 1 is a "
                            "fraction of all steps, rounded up.");
  warmup.value_name = "N";
  limit_steps(warmup, /*allow_zero=*/true);
  limit(table->add("warmup_ratio", &args->schedule.warmup_ratio,
                   "Warm-up as a fraction of all steps, rounded up; used when warmup_steps is 0."),
        {0, 1});
}

void declare_optimizer(FlagTable* table, RunSpec* args) {
  table->begin_section("Optimizer");
  declare_optim_flag(table, args);
  declare_learning_rate(table, args);
  limit(table->add("weight_decay", &args->optimizer.weight_decay,
                   "Decoupled weight decay. Norm weights and biases are not decayed unless "
                   "weight_decay_norms is set."),
        at_least(0));
  table->add("weight_decay_norms", &args->optimizer.weight_decay_norms,
             "Decay norm weights and biases as well, as optimizers from DeepSpeed files do.");
  limit(table->add("adam_beta1", &args->optimizer.beta1, "Decay rate of AdamW's first moment."),
        {0, 1, false, true});
  limit(table->add("adam_beta2", &args->optimizer.beta2, "Decay rate of AdamW's second moment."),
        {0, 1, false, true});
  // In float32, as which it is used, less is 0, and an element without a gradient would be 0 / 0.
  constexpr double kLeastEpsilon = 1.2e-38;
  limit(table->add("adam_epsilon", &args->optimizer.epsilon,
                   "Added to the square root of AdamW's second moment."),
        at_least(kLeastEpsilon));
  declare_muon_flags(table, args);
  limit(table->add("max_grad_norm", &args->clipping.max_norm,
                   "Gradients with a larger global norm are scaled down to this norm; 0 disables clipping."),
        at_least(0));
  table
      ->add("optimizer_in_backward", &args->placement.optimizer_in_backward,
            "Update every layer in the backward pass, as soon as its gradients are complete, so that the "
            "gradients of the whole model never exist: 4 bytes per parameter less, apart from the largest "
            "layer's. Micro-batches of a step are merged; several ranks need zero_stage 2 or 3. The result "
            "is the "
            "same.")
      .aliases = {"optimizer_in_bwd"};
  table->add_choice(
      "clip_mode", &args->clipping.mode,
      "Which norm max_grad_norm limits with optimizer_in_backward: global is that of the step, as without "
      "it, for which the step is computed twice, first for its norm alone; previous is that of the step "
      "before (the first step is computed twice); layer is that of every layer, embedding and head by "
      "itself, on one rank.");
  table->add_choice(
      "loss_spike_policy", &args->guards.loss_spike_policy,
      "What to do when a step's loss or gradient norm stands out from those before it: warn and continue, "
      "skip the update of weights and optimizer, or stop (exit code 79). skip also skips steps whose loss or "
      "gradient norm is not finite, up to ten in a row; otherwise such a step ends the run.");
  limit(table->add("loss_spike_window", &args->guards.loss_spike_window,
                   "Number of earlier steps a step is compared with; no step counts as a spike until half "
                   "that many are done."),
        {2, 1'000'000});
  limit(table->add("loss_spike_sigmas", &args->guards.loss_spike_sigmas,
                   "Standard deviations above the mean of those steps at which a value counts as a spike."),
        above(0));
  limit(table->add("replay_check_steps", &args->guards.replay_check_steps,
                   "Every this many steps, each rank computes its first pass of the step twice, forward and "
                   "backward, and compares every bit: a difference is silent data corruption in a processor "
                   "or memory and ends the run (exit code 79) with an error that names the rank and the "
                   "place. Costs one extra pass in that step. 0 disables the check."),
        at_least(0));
  limit(table->add("label_smoothing_factor", &args->objective.label_smoothing,
                   "Fraction of the target's probability that is spread over the whole vocabulary in the "
                   "training loss. Evaluation reports the loss without it."),
        {0, 1, false, true});
  limit(table->add("neftune_noise_alpha", &args->objective.neftune_alpha,
                   "NEFTune: during training, add uniform noise in [-1, 1] times neftune_noise_alpha / "
                   "sqrt(length x hidden size) to the embeddings of every document. The noise follows from "
                   "seed, step, row and position alone. Evaluation has none. Usual values are 5 to 15."),
        above(0));
  limit(table->add("seed", &args->seed, "Seed for everything random in the run."), at_least(0));
  limit(table->add("data_seed", &args->data.seed, "Seed for the row order. Defaults to seed."), at_least(0));
}

void declare_precision(FlagTable* table, RunSpec* args) {
  table->begin_section("Precision and machine");
  Flag& dtype =
      table->add_choice("dtype", &args->precision.dtype, kTrainingDTypeWords,
                        "Type of weights and activations. Either way, sums, softmax, norms and the loss are "
                        "computed in float32, master weights are float32, and so are the optimizer's moments "
                        "unless optim has another form of them.");
  dtype.aliases = {"torch_dtype"};
  refuse_choice(dtype, "float16", "use bfloat16, which needs no loss scaling");
  Flag& bf16 = table->add("bf16", &args->precision.bf16,
                          "Another spelling of dtype: true is bfloat16, false is float32, and auto, as in "
                          "Axolotl's files, leaves it to dtype.");
  bf16.set = [set = bf16.set](const std::vector<std::string>& values) {
    set(values == std::vector<std::string>{"auto"} ? std::vector<std::string>{"none"} : values);
  };
  table->add("bf16_full_eval", &args->precision.bf16_full_eval,
             "Evaluation always runs in dtype; true is accepted if that is bfloat16.");
  table
      ->add_choice("save_dtype", &args->precision.save_dtype, kSavedDTypeWords,
                   "Type of the weights in saved model folders. Defaults to dtype. float32 saves the "
                   "optimizer's exact master weights.")
      .value_name = "bfloat16|float16|float32";
  table->add_choice(
      "device", &args->machine.device,
      "What computes: the processor, or an NVIDIA card (the first that CUDA_VISIBLE_DEVICES leaves) by a "
      "program that was built with the preset cuda.");
  limit(table->add("num_threads", &args->machine.num_threads,
                   "Compute threads; 0 uses OMP_NUM_THREADS, or else one per core this process may use. The "
                   "result does not depend on it."),
        {0, kMaxThreads});
  table->add(
      "measure_peak", &args->reporting.measure_peak,
      "Measure the processor's arithmetic peak at startup, in a fraction of a second, and now and then "
      "between steps (4 ms every 20 s), and show what share of the best measurement training reaches (MFU).");
}

void declare_ranks(FlagTable* table, RunSpec* args) {
  table->begin_section("Several ranks");
  Flag& stage =
      table->add("zero_stage", &args->sharding.stage,
                 "What is sharded across ranks, numbered as in DeepSpeed: 0 nothing but what a node keeps "
                 "once, 1 the optimizer state, 2 the gradients as well, 3 the weights as well. The result is "
                 "the same. Defaults to the stage in the deepspeed file, or to 2 without a file.");
  limit(stage, {0, 3});
  table->add_choice(
      "gather_schedule", &args->sharding.gather_schedule,
      "With zero_stage 3, when weights cross the network: per_step gathers them once per optimizer step and "
      "keeps all weights on every node until it ends; per_layer gathers them in every pass, with a few "
      "layers on a node at a time. auto is per_step if memory allows. The result is the same.");
  table->add_choice("grad_accum_dtype", &args->sharding.grad_accum_dtype, kAccumulationDTypeWords,
                    "Type in which several ranks keep gradients between the passes of a step; they are added "
                    "in float32 either way. auto follows the deepspeed file, or is float32 without one.");
  table->add("zero_quantized_weights", &args->sharding.quantized_weights,
             "Weights travel between nodes in blocks of 8-bit integers: half the bytes. A node computes with "
             "its own share of the weights as it is and the other nodes' rounded; the optimizer's master "
             "weights and the saved model are exact. Needs dtype bfloat16 and zero_stage 1 or more.");
  table->add_choice(
      "zero_quantized_gradients", &args->sharding.quantized_gradients, kGradientCodeWords,
      "Gradients travel between nodes in blocks of 8-bit or 4-bit integers instead of bfloat16: "
      "half or a quarter of the bytes. The error of what a node sends is added to what it sends "
      "next and is part of the state that checkpoints save; sums are in float32. Takes 2 bytes "
      "per element of what a rank sums for its node.");
  table->add_choice("load_weights_once", &args->sharding.load_once,
                    "How often each byte of the model's files is read: once per node, shared by its ranks, "
                    "or once per cluster, with the rest coming over the network, for a shared disk that is "
                    "slower than the network. per_cluster needs zero_stage 1 or more.");
  declare_outer_flags(table, args);
  declare_context_flags(table, args);
  Flag& timeout = table->add("ddp_timeout", &args->network.timeout_s,
                             "Seconds to wait for another rank before the run ends with an error that names "
                             "it (Hugging Face's default: 1800). A rank that has died is detected at once.");
  limit(timeout, {1, 1e9});  // LLaMA-Factory's files ask for 180000000
  limit(table->add("connections", &args->network.connections,
                   "Connections between two nodes, per rank; over libfabric, endpoints of a rank."),
        {1, 64});
  Flag& fabric =
      table->add("fabric", &args->network.fabric,
                 "Transport between nodes: tcp, a provider of libfabric such as efa, "
                 "verbs;ofi_rxm or tcp;ofi_rxm, or auto, which takes efa or verbs where the machine "
                 "has such a device and libfabric is installed, and otherwise tcp. The result is "
                 "the same.");
  fabric.value_name = "auto|tcp|PROVIDER";
  Flag& interface = table->add("interface", &args->network.interface,
                               "Network interface for traffic between nodes, such as eth1. Defaults to "
                               "GLOO_SOCKET_IFNAME, or else to the interface that leads to the first node.");
  interface.value_name = "NAME";
}

void declare_resuming(FlagTable* table, RunSpec* args) {
  Flag& resume = table->add_parsed(
      "resume_from_checkpoint", [args](const std::string& text) { args->resume = parse_resume(text); },
      [args] { return resume_text(args->resume); },
      "Resume from a checkpoint as if the run had never stopped: true uses the newest complete "
      "one in output_dir; auto does the same but starts from scratch if there is none; anything "
      "else is a checkpoint folder. The number of ranks and how they share the work may differ.");
  resume.value_name = "true|auto|DIR";
  table->add("save_on_sigterm", &args->saving.on_sigterm,
             "Save a checkpoint of the last finished step when SIGTERM or Ctrl-C ends the run.");
  limit(table->add("grace_period_s", &args->grace_period_s,
                   "Seconds the run may take to shut down after SIGTERM or Ctrl-C. If the rest of the step "
                   "and the checkpoint would take more than four fifths of that, judging by the steps so "
                   "far, the step is abandoned."),
        above(0));
}

void declare_saving(FlagTable* table, RunSpec* args) {
  table->begin_section("Output");
  Flag& output = table->add("output_dir", &args->output_dir,
                            "Folder for the trained model, the checkpoints, trainer_state.json and "
                            "metrics.jsonl. Files from an earlier run are moved into a subfolder previous-1, "
                            "previous-2, ... unless the run is resumed. All nodes must see the same folder.");
  output.value_name = "DIR";
  output.set = [set = output.set, args](const std::vector<std::string>& values) {
    set(values);
    std::string& path = args->output_dir;
    if (path.empty()) fail(ExitCode::kUsage, "--output_dir: expected a folder, found ''");
    // As Hugging Face's Trainer does: shells expand "~" neither in files nor after "--output_dir=".
    const char* home = std::getenv("HOME");
    if (home != nullptr && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
  };
  table->add_choice(
      "save_strategy", &args->saving.strategy,
      "When to write a checkpoint-N folder: never, every save_steps and at the last step, after "
      "every epoch, or after every evaluation that is the best so far by "
      "metric_for_best_model. The finished model is always written.");
  limit_steps(table->add("save_steps", &args->saving.steps,
                         "Steps between checkpoints; a value below 1 is a fraction of all steps."),
              /*allow_zero=*/false);
  limit(table->add("save_total_limit", &args->saving.total_limit,
                   "Keep only this many of the run's checkpoints, including those from before it was "
                   "resumed; the oldest are deleted, but never the newest, nor the best by "
                   "metric_for_best_model: with a limit of 1 these are two while the run lasts, and the best "
                   "is left in the end. By default all are kept."),
        at_least(1));
  table->add("async_save", &args->saving.in_background,
             "Write checkpoints while training continues. The files are the same without it.");
  table->add_size("save_rate_limit", &args->saving.bytes_per_second, "200MB or 1GiB",
                  "Maximum that all ranks together write per second, such as 200MB or 1GiB, so that other "
                  "users of a shared disk are not held up. Unlimited by default.");
  limit(table->add("peer_snapshot_steps", &args->saving.peer_snapshot_steps,
                   "Steps between snapshots of every rank's state, kept in the memory of its node and of the "
                   "next node. Ranks restarted by tessera launch resume from a snapshot that is newer than "
                   "the last checkpoint, so lost processes or a lost node cost at most this many steps and "
                   "no reading from disk. Takes 24 bytes per parameter of the job's memory, 48 with several "
                   "nodes. 0 disables snapshots."),
        at_least(0));
  declare_resuming(table, args);
}

}  // namespace

void declare_training_flags(FlagTable* table, RunSpec* args) {
  declare_model_and_data(table, args);
  declare_rows(table, args);
  declare_settings_files(table, args);
  declare_batch(table, args);
  declare_optimizer(table, args);
  declare_lora_flags(table, args);
  declare_quantization_flags(table, args);
  declare_precision(table, args);
  declare_offload_flags(table, args);
  declare_ranks(table, args);
  declare_evaluation_flags(table, args);
  declare_report_flags(table, args);
  declare_metrics_flags(table, args);
  declare_saving(table, args);
  declare_script_flags(table, args);
  declare_compat_flags(table);
}

}  // namespace tessera
