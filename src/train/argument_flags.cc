// The flag table of `tessera train`: names, defaults, help, ranges. This text is what --help and
// docs/flags.md show.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "optim/schedule.h"
#include "platform/cpu.h"
#include "train/arguments.h"
#include "train/foreign_names.h"
#include "train/unsupported_flags.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Values in [minimum, maximum]; below `maximum` only when `open_end`, above `minimum` only when `open_begin`.
// NaN and infinities are outside.
struct Range {
  double minimum = -kInfinity;
  double maximum = kInfinity;
  bool open_begin = false;
  bool open_end = false;

  bool contains(double value) const {
    if (!std::isfinite(value)) return false;
    return (open_begin ? value > minimum : value >= minimum) &&
           (open_end ? value < maximum : value <= maximum);
  }
  std::string describe() const {
    if (maximum == kInfinity) return fmt::format("{} {}", open_begin ? "above" : "of at least", minimum);
    return fmt::format("from {}{} to {}{}", open_begin ? "above " : "", minimum, open_end ? "below " : "",
                       maximum);
  }
};

constexpr Range at_least(double minimum) { return {minimum}; }
constexpr Range above(double minimum) { return {minimum, kInfinity, true}; }

// Refuses values outside `range` as they are set.
void limit(Flag& flag, const Range& range) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name, range,
              expected = flag.type == FlagType::kInt ? "a number" : "a finite number"](
                 const std::vector<std::string>& values) {
    set(values);
    for (const std::string& value : get()) {
      if (range.contains(std::stod(value))) continue;
      fail(ExitCode::kUsage, "--{}: expected {} {}, found {}", name, expected, range.describe(), value);
    }
  };
}

// A whole number of steps, or a share of all steps below 1; 0 only where it has a meaning.
void limit_steps(Flag& flag, bool allow_zero) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name,
              allow_zero](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = std::stod(text);
      const bool in_range = std::isfinite(value) && (allow_zero ? value >= 0 : value > 0) && value <= 0x1p53;
      if (in_range && (value < 1 || value == std::floor(value))) continue;
      fail(ExitCode::kUsage,
           "--{}: expected a whole number of steps or a share of all steps {} and below 1, found {}", name,
           allow_zero ? "of at least 0" : "above 0", text);
    }
  };
}

// A choice that Hugging Face knows and that would change the result: the usual refusal says why it is not
// taken.
void refuse_choice(Flag& flag, const std::string& choice, const std::string& why) {
  flag.set = [set = flag.set, name = flag.name, choice, why](const std::vector<std::string>& values) {
    if (values.size() == 1 && values[0] == choice) {
      fail(ExitCode::kUsage, "--{} {} is not supported: {}", name, choice, why);
    }
    set(values);
  };
}

// The same for whatever is none of the choices.
void refuse_other_choices(Flag& flag, const std::string& why) {
  flag.set = [set = flag.set, name = flag.name, why](const std::vector<std::string>& values) {
    try {
      set(values);
    } catch (const Error& error) {
      if (values.size() != 1) throw;
      fail(error.code(), "--{} {} is not supported: {}", name, printable(values[0]), why);
    }
  };
}

void declare_model_and_data(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Model and data");
  Flag& model = table->add("model", &args->model,
                           "Folder of the model to train, as Hugging Face writes it: config.json and "
                           "model.safetensors, in one file or in shards.");
  model.aliases = {"model_name_or_path"};
  model.value_name = "DIR";
  model.required = true;
  Flag& tokenizer =
      table->add("tokenizer", &args->tokenizer,
                 "Folder with the tokenizer (tokenizer.json). Without it the model's folder is taken.");
  tokenizer.aliases = {"tokenizer_name", "tokenizer_name_or_path"};
  tokenizer.value_name = "DIR";
  Flag& dataset = table->add(
      "dataset", &args->dataset,
      "Files to train on, folders or glob patterns, one or more. What a file holds follows from its "
      "name: .jsonl, .ndjson and .json are JSON objects, one per line; .safetensors holds token ids "
      "(input_ids and, if wanted, labels); anything else is text in UTF-8, but for formats that are "
      "not read, such as .csv, .parquet or .gz, which are refused. Of a folder only these and .txt, "
      ".text, .md, .markdown, .rst and .tex are read, and no hidden files; 'DIR/**/*.py' names all "
      "files of another kind below DIR.");
  dataset.aliases = {"train_file"};
  dataset.required = true;
  table->add("eval_dataset", &args->eval_dataset, "Files to evaluate on, named in the same way as dataset.")
      .aliases = {"validation_file"};
  table->add("text_column", &args->text_column, "Name of the JSONL field that holds the text.").aliases = {
      "text_column_name", "dataset_text_field"};
  table->add("text_per_line", &args->text_per_line,
             "In text files every line is a document. Otherwise a document is a whole file.");
  table->add(
      "add_special_tokens", &args->add_special_tokens,
      "Let the tokenizer add its special tokens, such as the beginning of the text, to every document.");
  table->add("skip_invalid_utf8", &args->skip_invalid_utf8,
             "Leave out documents that are not UTF-8 and count them. Otherwise the first one ends the run.");
  Flag& max_length = table->add("max_length", &args->max_length,
                                "Tokens per row: longer documents are cut, and packing fills rows up to this "
                                "length. Without it 1024, or the model's max_position_embeddings where that "
                                "is less; rows of token ids are then cut at max_position_embeddings only.");
  max_length.aliases = {"max_seq_length", "block_size"};
  limit(max_length, at_least(2));
  table->add(
      "allow_truncation", &args->allow_truncation,
      "Drop the tokens of a document beyond max_length, which is the end of every longer one without "
      "packing, even where they are more than a tenth of all tokens. Otherwise that ends the run before "
      "the first step.");
  table->add(
      "packing", &args->packing,
      "Join documents, each ended by the end-of-text token, and cut them into rows of max_length tokens. "
      "Without packing every document is a row of its own; padding is never computed either way.");
  table->add("packing_cross_document_attention", &args->packing_cross_document_attention,
             "With packing, let tokens attend to earlier documents of their row, and predict the first token "
             "of a document from the one before. Otherwise documents in a row never see each other.");
  table->add("shuffle", &args->shuffle,
             "Read the rows in a new random order in every epoch, the order Hugging Face's Trainer draws "
             "from the same seed. Without it step k takes the rows in the order of the files.");
  Flag& sampling =
      table->add_choice("train_sampling_strategy", &args->train_sampling_strategy, {"random", "sequential"},
                        "Hugging Face's spelling of shuffle: random is true, sequential is false.");
  refuse_choice(sampling, "group_by_length", "rows are never padded here, so there is nothing to gain");
  table->add("dataloader_drop_last", &args->dataloader_drop_last,
             "Leave out the last micro-batch of an epoch when it is not full.");
  Flag& cache_dir = table->add(
      "cache_dir", &args->cache_dir,
      "Folder of the cache of tokenized datasets. Without it $XDG_CACHE_HOME/tessera or ~/.cache/tessera.");
  cache_dir.value_name = "DIR";
  Flag& config = table->add("config", &args->config,
                            "A JSON or YAML file with settings under the names of these flags; may also be "
                            "given without the flag: tessera train run.yaml. Flags given on the command "
                            "line win over the file.");
  config.value_name = "FILE";
  config.lone_endings = {".yaml", ".yml", ".json"};
  Flag& deepspeed = table->add(
      "deepspeed", &args->deepspeed,
      "A DeepSpeed configuration file as it is, or its JSON, or that in base64. It decides what no flag "
      "gives; where both give a value and differ, the run is refused. docs/deepspeed.md has every key.");
  deepspeed.value_name = "FILE";
  table->add_choice(
      "ds_compat", &args->ds_compat, {"0.16", "0.19"},
      "The DeepSpeed release whose defaults hold for what the file leaves out: "
      "gradient_clipping is 0 in 0.16 and 1 in 0.19; warmup_max_lr of WarmupLR is 0.001 in 0.16 "
      "and the optimizer's rate in 0.19.");
}

void declare_batch(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Batch and length of the run");
  Flag& train_batch = table->add(
      "per_device_train_batch_size", &args->per_device_train_batch_size,
      "Rows of one micro-batch: what goes through the model at once. Decides the memory of the activations.");
  train_batch.aliases = {"per_gpu_train_batch_size"};
  limit(train_batch, at_least(1));
  Flag& eval_batch = table->add("per_device_eval_batch_size", &args->per_device_eval_batch_size,
                                "Rows of one evaluation batch, at most. Fewer are taken where they would "
                                "need more memory than training does; the result is the same.");
  eval_batch.aliases = {"per_gpu_eval_batch_size"};
  limit(eval_batch, at_least(1));
  limit(table->add("gradient_accumulation_steps", &args->gradient_accumulation_steps,
                   "Micro-batches whose gradients are added up before the weights change."),
        at_least(1));
  limit(table->add("global_batch_size", &args->global_batch_size,
                   "Rows of one optimizer step over all ranks, any number: training is then the same on any "
                   "number of ranks. per_device_train_batch_size is the most that a micro-batch takes, and "
                   "gradient_accumulation_steps follows. Without it a step takes per_device_train_batch_size "
                   "x gradient_accumulation_steps x ranks, as in Hugging Face's Trainer."),
        at_least(1));
  limit(table->add("num_train_epochs", &args->num_train_epochs,
                   "Passes over the dataset; fractions are allowed. max_steps takes precedence."),
        above(0));
  Flag& max_steps =
      table->add("max_steps", &args->max_steps,
                 "Optimizer steps, over as many epochs as it takes; -1 follows num_train_epochs.");
  max_steps.set = [set = max_steps.set, args](const std::vector<std::string>& values) {
    set(values);
    if (args->max_steps != -1 && args->max_steps < 1) {
      fail(ExitCode::kUsage, "--max_steps: expected at least 1, or -1 to follow num_train_epochs, found {}",
           args->max_steps);
    }
  };
}

void declare_learning_rate(FlagTable* table, TrainingArguments* args) {
  limit(
      table->add("learning_rate", &args->learning_rate, "Highest learning rate, which the schedule scales."),
      at_least(0));
  table->add_choice("lr_scheduler_type", &args->lr_scheduler_type, schedule_names(),
                    "How the learning rate changes over the run, after the warm-up.");
  Flag& kwargs =
      table->add("lr_scheduler_kwargs", &args->lr_scheduler_kwargs,
                 "Keywords of the schedule as a JSON object, such as {\"num_cycles\": 2}: num_cycles "
                 "(cosine, cosine_with_restarts and others), lr_end and power (polynomial), timescale "
                 "(inverse_sqrt), min_lr or min_lr_rate (cosine_with_min_lr, cosine_warmup_with_min_lr), "
                 "warmup_lr_rate (cosine_warmup_with_min_lr), num_decay_steps, num_stable_steps, "
                 "warmup_type, decay_type and min_lr_ratio (warmup_stable_decay), mode, factor, patience, "
                 "threshold, threshold_mode, cooldown, min_lr and eps (reduce_lr_on_plateau); those of "
                 "DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest and OneCycle are in "
                 "docs/deepspeed.md.");
  kwargs.value_name = "JSON";
  Flag& warmup = table->add("warmup_steps", &args->warmup_steps,
                            "Steps over which the learning rate rises to its highest value; below 1 a share "
                            "of all steps, rounded up.");
  warmup.value_name = "N";
  limit_steps(warmup, /*allow_zero=*/true);
  limit(table->add("warmup_ratio", &args->warmup_ratio,
                   "Warm-up as a share of all steps, rounded up; used when warmup_steps is 0."),
        {0, 1});
}

void declare_optimizer(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Optimizer");
  refuse_other_choices(
      table->add_choice("optim", &args->optim, {"adamw_torch", "adamw_torch_fused", "adamw_hf"},
                        "The optimizer. All names stand for the same AdamW with decoupled weight decay, "
                        "computed as in torch.optim.AdamW with float32 state."),
      "AdamW with float32 state is the only optimizer; take adamw_torch");
  declare_learning_rate(table, args);
  limit(table->add("weight_decay", &args->weight_decay,
                   "Decoupled weight decay. Norm weights and biases are not decayed unless "
                   "weight_decay_norms says so."),
        at_least(0));
  table->add("weight_decay_norms", &args->weight_decay_norms,
             "Decay norm weights and biases as well, as the optimizers of DeepSpeed files do.");
  limit(table->add("adam_beta1", &args->adam_beta1, "Decay rate of AdamW's first moment."),
        {0, 1, false, true});
  limit(table->add("adam_beta2", &args->adam_beta2, "Decay rate of AdamW's second moment."),
        {0, 1, false, true});
  limit(table->add("adam_epsilon", &args->adam_epsilon, "Added to the root of AdamW's second moment."),
        above(0));
  limit(table->add("max_grad_norm", &args->max_grad_norm,
                   "Gradients are scaled down to this global norm when theirs is larger; 0 turns this off."),
        at_least(0));
  table->add_choice(
      "loss_spike_policy", &args->loss_spike_policy, {"warn", "skip", "stop"},
      "What to do when the loss or the gradient norm of a step stands out from those before it: warn and go "
      "on, skip the update of weights and optimizer, or stop (exit code 79). skip also leaves out steps "
      "whose loss or gradient norm is not finite, up to ten in a row; otherwise such a step ends the run.");
  limit(table->add("loss_spike_window", &args->loss_spike_window,
                   "Steps that a step is compared with; nothing stands out before half of them are done."),
        {2, 1'000'000});
  limit(table->add("loss_spike_sigmas", &args->loss_spike_sigmas,
                   "Standard deviations above the mean of those steps from which on a value stands out."),
        above(0));
  limit(
      table->add("replay_check_steps", &args->replay_check_steps,
                 "Every so many steps each rank computes its first pass of the step twice, forward and "
                 "backward, and compares all bits: a difference is silent data corruption by a processor or "
                 "memory, and ends the run (exit code 79) with the name of the rank and the place. Costs one "
                 "pass more in that step. 0: never."),
      at_least(0));
  limit(table->add("label_smoothing_factor", &args->label_smoothing_factor,
                   "Share of the target's probability that is spread over the whole vocabulary in the "
                   "training loss. Evaluation reports the loss without it."),
        {0, 1, false, true});
  limit(table->add("seed", &args->seed, "Seed of everything random in the run."), at_least(0));
  limit(table->add("data_seed", &args->data_seed, "Seed of the order of the rows. Without it seed is taken."),
        at_least(0));
}

void declare_precision(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Precision and machine");
  Flag& dtype = table->add_choice("dtype", &args->dtype, {"bfloat16", "float32", "bf16", "fp32"},
                                  "Type of weights and activations. Sums, softmax, norms and the loss are in "
                                  "float32 in both, and so are the optimizer's moments and master weights.");
  dtype.aliases = {"torch_dtype"};
  refuse_choice(dtype, "float16", "use bfloat16, which needs no loss scaling");
  table->add("bf16", &args->bf16, "Another spelling of dtype: true is bfloat16, false is float32.");
  table->add("bf16_full_eval", &args->bf16_full_eval,
             "Evaluation always runs in dtype; true is accepted when that is bfloat16.");
  Flag& save_dtype = table->add("save_dtype", &args->save_dtype,
                                "Type of the weights in the folders that are written. Without it dtype. "
                                "float32 writes the optimizer's exact master weights.");
  save_dtype.value_name = "bfloat16|float16|float32";
  save_dtype.set = [args](const std::vector<std::string>& values) {
    for (const char* choice : {"", "bfloat16", "float16", "float32", "bf16", "fp16", "fp32"}) {
      if (values.size() != 1 || values[0] != choice) continue;
      args->save_dtype = values[0];
      return;
    }
    fail(ExitCode::kUsage, "--save_dtype: expected one of bfloat16, float16, float32, found '{}'",
         fmt::join(values, " "));
  };
  table->add("gradient_checkpointing", &args->gradient_checkpointing,
             "Keep only the input of every layer and compute the layer again in the backward pass: much less "
             "memory for about a third more time, with the same result.");
  table->add_choice(
      "merge_micro_batches", &args->merge_micro_batches, {"auto", "always", "never"},
      "Micro-batches of a step go through the model together, which is faster: every weight is read and "
      "every gradient updated once for all of them. The result is the same up to rounding. auto merges "
      "up to 2048 tokens if the activations then grow by no more than an eighth of the memory of "
      "weights, gradients and optimizer; never keeps the memory of one micro-batch.");
  table->add_choice(
      "pack_weights", &args->pack_weights, {"auto", "always", "never"},
      "Keep the weights a second and a third time in the forms that matrix products on AMX take, which saves "
      "making them in every product. The result is the same. auto does if the memory is there and weights "
      "stay on the node for the whole step.");
  limit(table->add("num_threads", &args->num_threads,
                   "Threads to compute with; 0 takes OMP_NUM_THREADS, or else one for each core this process "
                   "may use. The result does not depend on it."),
        {0, kMaxThreads});
  table->add(
      "measure_peak", &args->measure_peak,
      "Measure the processor's arithmetic peak at the start, in a fraction of a second, and now and then "
      "between steps (4 ms every 20 s), and show the share of the best that training reaches (MFU).");
}

void declare_ranks(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Several ranks");
  Flag& stage = table->add(
      "zero_stage", &args->zero_stage,
      "What is sharded over the ranks, as DeepSpeed counts: 0 nothing but what a node keeps once, 1 the "
      "optimizer's state, 2 the gradients as well, 3 the weights as well. The result is the same. Without it "
      "the deepspeed file decides, and without a file it is 2.");
  limit(stage, {0, 3});
  table->add_choice(
      "gather_schedule", &args->gather_schedule, {"auto", "per_step", "per_layer"},
      "With zero_stage 3, when weights cross the network: per_step once per optimizer step, with all weights "
      "on every node until its end; per_layer in every pass, with a few layers on a node at a time. auto is "
      "per_step where the memory is there. The result is the same.");
  table->add_choice("grad_accum_dtype", &args->grad_accum_dtype, {"auto", "float32", "bfloat16"},
                    "Type in which several ranks keep the gradients of a step of several passes; they are "
                    "added in float32 either way. auto is what the deepspeed file says, or float32.");
  table->add_choice(
      "load_weights_once", &args->load_weights_once, {"per_node", "per_cluster"},
      "How often a byte of the model's files is read: once on every node, shared by its ranks, or once by "
      "all nodes together, the rest coming over the network: for a disk that they share and that is slower. "
      "per_cluster needs zero_stage 1 or more.");
  Flag& timeout = table->add(
      "ddp_timeout", &args->ddp_timeout,
      "Seconds to wait for another rank before the run ends with an error that names it (Hugging Face: "
      "1800). A rank that has died is noticed at once.");
  limit(timeout, {1, 1e6});
  limit(table->add("connections", &args->connections, "TCP connections between two nodes, per rank."),
        {1, 64});
  Flag& interface = table->add("interface", &args->interface,
                               "Network interface for the traffic between nodes, such as eth1. Without it "
                               "GLOO_SOCKET_IFNAME, or else the one that leads to the first node.");
  interface.value_name = "NAME";
}

void declare_logging(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Logging and evaluation");
  table->add_choice(
      "logging_strategy", &args->logging_strategy, {"no", "steps", "epoch"},
      "When the training loss is shown and kept in trainer_state.json. metrics.jsonl has every step.");
  limit_steps(table->add("logging_steps", &args->logging_steps,
                         "Steps between two log entries, below 1 a share of all steps. The loss of an entry "
                         "is the mean over the steps since the last one."),
              /*allow_zero=*/false);
  table->add("logging_first_step", &args->logging_first_step, "Also log the first step.");
  table->add_choice("include_num_input_tokens_seen", &args->include_num_input_tokens_seen,
                    {"no", "all", "non_padding"},
                    "Add the number of tokens trained on so far to the log entries. There is no padding, so "
                    "all and non_padding are the same.");
  table->add("disable_tqdm", &args->disable_tqdm, "Show no progress bar.");
  table->add_choice("log_level", &args->log_level,
                    {"passive", "debug", "info", "warning", "error", "critical"},
                    "Messages below this level are dropped: warning hides the progress lines as well. The "
                    "error that ends a run is always shown. passive is info.");
  table
      ->add_choice("eval_strategy", &args->eval_strategy, {"no", "steps", "epoch"},
                   "When to evaluate on eval_dataset: never, every eval_steps, or after every epoch.")
      .aliases = {"evaluation_strategy"};
  limit_steps(
      table->add("eval_steps", &args->eval_steps,
                 "Steps between two evaluations, below 1 a share of all steps. Without it logging_steps."),
      /*allow_zero=*/false);
  limit(table->add("eval_delay", &args->eval_delay,
                   "Steps, or epochs with eval_strategy epoch, before the first evaluation."),
        at_least(0));
  table->add("eval_on_start", &args->eval_on_start, "Evaluate before the first step as well.");
  Flag& metric =
      table->add_choice("metric_for_best_model", &args->metric_for_best_model, {"loss", "eval_loss"},
                        "The metric that reduce_lr_on_plateau watches. The evaluation loss is the only one.");
  metric.value_name = "loss";
}

void declare_resuming(FlagTable* table, TrainingArguments* args) {
  Flag& resume = table->add(
      "resume_from_checkpoint", &args->resume_from_checkpoint,
      "Go on from a checkpoint as if the run had never ended: true takes the newest complete one of "
      "output_dir, auto does, too, and starts afresh where there is none; anything else is the "
      "folder of a checkpoint. The number of ranks and how they share the work may differ.");
  resume.value_name = "true|auto|DIR";
  resume.set = [args](const std::vector<std::string>& values) {
    const std::string value = values.size() == 1 ? values[0] : "";
    const std::string word = lower_case(value);
    args->resume_from_checkpoint = word == "false" || word == "none" || word == "no" ? ""
                                   : word == "true" || word == "yes"                 ? "true"
                                   : word == "auto"                                  ? "auto"
                                                                                     : value;
  };
  table->add("save_on_sigterm", &args->save_on_sigterm,
             "Leave a checkpoint of the last finished step when SIGTERM or Ctrl-C ends the run.");
  limit(table->add("grace_period_s", &args->grace_period_s,
                   "Seconds that the run has to end behind SIGTERM or Ctrl-C. Where the rest of the step and "
                   "the checkpoint would take more than four fifths of them, as measured so far, the step is "
                   "given up."),
        above(0));
}

void declare_saving(FlagTable* table, TrainingArguments* args) {
  table->begin_section("Output");
  Flag& output =
      table->add("output_dir", &args->output_dir,
                 "Folder for the trained model, the checkpoints, trainer_state.json and metrics.jsonl. Files "
                 "of a former run in it are moved to a folder previous-1, previous-2, ... inside, unless "
                 "the run is resumed. All nodes must see the same folder.");
  output.value_name = "DIR";
  Flag& strategy =
      table->add_choice("save_strategy", &args->save_strategy, {"no", "steps", "epoch"},
                        "When to write a checkpoint-N folder: never, every save_steps and at the last step, "
                        "or after every epoch. The finished model is always written.");
  refuse_choice(strategy, "best", "checkpoints are not compared yet; use steps or epoch");
  limit_steps(table->add("save_steps", &args->save_steps,
                         "Steps between two checkpoints, below 1 a share of all steps."),
              /*allow_zero=*/false);
  limit(table->add(
            "save_total_limit", &args->save_total_limit,
            "Keep only this many of the checkpoints of this run, those before it was resumed included; the "
            "oldest are deleted. Without it all stay."),
        at_least(1));
  table->add("async_save", &args->async_save,
             "Write checkpoints while training goes on. The files are the same without it.");
  table->add_size("save_rate_limit", &args->save_rate_limit, "200MB or 1GiB",
                  "The most that all ranks together write in a second, such as 200MB or 1GiB, so that "
                  "others of a shared disk are not held up. Without it there is no limit.");
  limit(table->add(
            "peer_snapshot_steps", &args->peer_snapshot_steps,
            "Steps between two copies of the state of every rank in the memory of its node and of the next "
            "one, from which ranks that tessera launch starts again go on where that is newer than the last "
            "checkpoint: lost processes, or a lost node, then cost at most so many steps and no reading. "
            "Takes 24 bytes a parameter of the job's memory, with several nodes 48. 0 = none."),
        at_least(0));
  declare_resuming(table, args);
}

}  // namespace

void declare_training_flags(FlagTable* table, TrainingArguments* args) {
  declare_model_and_data(table, args);
  declare_batch(table, args);
  declare_optimizer(table, args);
  declare_precision(table, args);
  declare_ranks(table, args);
  declare_logging(table, args);
  declare_saving(table, args);
  declare_unsupported_flags(table);
  table->add_foreign_names(training_names());
}

}  // namespace tessera
