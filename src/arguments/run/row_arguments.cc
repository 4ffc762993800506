#include "arguments/run/row_arguments.h"

#include "base/error.h"
#include "base/log.h"

namespace tessera {
namespace {

// Rows that are packed by length are in its order: the first ones, held out for evaluation, would have the
// longest documents.
Packing packing_of_run(const TrainingArguments& args) {
  const std::string& strategy = args.packing_strategy;
  if (strategy == "bfd") return Packing::kBestFit;
  if (strategy == "bfd_split") return Packing::kBestFitSplit;
  if (strategy == "wrapped") return Packing::kWrapped;
  if (strategy == "greedy_knapsack") return Packing::kKnapsack;
  if (args.packing_cross_document_attention) return Packing::kJoined;
  const bool is_by_rows = strategy == "auto" && args.validation_split_percentage == 0;
  return is_by_rows ? Packing::kByRows : Packing::kIsolated;
}

bool is_by_length(const TrainingArguments& args) {
  const Packing packing = packing_of_run(args);
  return packing == Packing::kBestFit || packing == Packing::kBestFitSplit || packing == Packing::kKnapsack;
}

}  // namespace

void resolve_data_order(const FlagTable& table, TrainingArguments* args) {
  const bool random = args->train_sampling_strategy != "sequential";
  const bool is_grouped = args->train_sampling_strategy == "group_by_length";
  if (table.is_set("train_sampling_strategy") || is_grouped) {
    if (table.is_set("shuffle") && args->shuffle != random) {
      fail(ExitCode::kBadConfig, "shuffle {} contradicts train_sampling_strategy {}: give one of them",
           args->shuffle, args->train_sampling_strategy);
    }
    args->shuffle = random;
  }
  if (!is_grouped) args->train_sampling_strategy = args->shuffle ? "random" : "sequential";
  if (is_grouped && args->streaming) {
    fail(ExitCode::kBadConfig,
         "train_sampling_strategy group_by_length needs the lengths of all rows, which streaming does not "
         "know: leave one of the two out");
  }
  const bool draws_more =
      args->neftune_noise_alpha || (args->finetuning_type == "lora" && args->lora_dropout > 0);
  if (is_grouped && draws_more && args->num_train_epochs > 1) {
    log_warning(
        "train_sampling_strategy group_by_length: from the second epoch on, Hugging Face's Trainer has "
        "another order with {}, which draws from the same numbers; here it is the one without",
        args->neftune_noise_alpha ? "neftune_noise_alpha" : "lora_dropout");
  }
}

void check_packing(const FlagTable& table, const TrainingArguments& args) {
  const bool is_packed = args.packing || args.eval_packing.value_or(false);
  if (args.packing_cross_document_attention && !args.packing) {
    fail(ExitCode::kBadConfig,
         "packing_cross_document_attention needs packing true: without packing a row is a document");
  }
  if (args.packing_cross_document_attention && is_by_length(args)) {
    fail(
        ExitCode::kBadConfig,
        "packing_cross_document_attention contradicts packing_strategy {}, in which documents never see each "
        "other: take wrapped or in_order",
        args.packing_strategy);
  }
  if (table.is_set("packing_strategy") && !is_packed && args.packing_strategy != "bfd" &&
      args.packing_strategy != "auto")
    log_warning("packing_strategy has no effect: packing is false");
  if (args.validation_split_percentage > 0 && args.packing && is_by_length(args)) {
    log_warning(
        "packing_strategy {} orders rows by the lengths of their documents: validation_split_percentage "
        "holds out those with the longest",
        args.packing_strategy);
  }
  if (args.validation_split_percentage > 0 && args.eval_packing && *args.eval_packing != args.packing) {
    fail(ExitCode::kBadConfig,
         "eval_packing {} contradicts validation_split_percentage, which takes rows that are {}packed: give "
         "an eval_dataset",
         *args.eval_packing, args.packing ? "" : "not ");
  }
}

void check_token_average(const TrainingArguments& args, int64_t world_size) {
  if (args.average_tokens_across_devices || world_size == 1) return;
  const auto refuse = [](bool found, const char* what) {
    if (!found) return;
    fail(ExitCode::kBadConfig,
         "average_tokens_across_devices false cannot be combined with {}: the mean over a rank's own rows "
         "counts, and which these are must follow from per_device_train_batch_size",
         what);
  };
  refuse(args.global_batch_size.has_value(), "global_batch_size");
  refuse(args.context_parallel_size > 1, "context_parallel_size");
  refuse(args.sync_every > 0, "sync_every");
}

Packing TrainingArguments::packing_mode() const { return packing ? packing_of_run(*this) : Packing::kNone; }

Packing TrainingArguments::eval_packing_mode() const {
  return eval_packing.value_or(packing) ? packing_of_run(*this) : Packing::kNone;
}

}  // namespace tessera
