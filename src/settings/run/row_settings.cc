#include "settings/run/row_settings.h"

#include "base/error.h"
#include "base/log.h"

namespace tessera {
namespace {

Packing packing_of_run(const DataSpec& data) {
  const Packing packing = packing_by_strategy(data.packing_strategy, data.packing_cross_document_attention);
  const bool is_in_order = packing == Packing::kByRows && data.validation_split_percentage > 0;
  return is_in_order ? Packing::kIsolated : packing;
}

bool is_by_length(Packing packing) {
  return packing == Packing::kBestFit || packing == Packing::kBestFitSplit || packing == Packing::kKnapsack;
}

}  // namespace

void declare_packing_flags(FlagTable* table, PackingStrategy* strategy, bool* joined) {
  table->add_choice(
      "packing_strategy", strategy,
      "How documents are packed. As in TRL, 1000 documents at a time: bfd cuts them to max_length and puts "
      "each, from the longest on, into the fullest row with room; bfd_split does so with all pieces of "
      "max_length tokens; wrapped joins the documents and cuts them into rows, in which tokens see the "
      "documents before. in_order joins all documents and cuts them, and they do not see each other. "
      "greedy_knapsack is LLaMA-Factory's neat_packing. auto is TRL's bfd for rows of JSON files and tables, "
      "and in_order for text files and with validation_split_percentage.");
  table->add("packing_cross_document_attention", joined,
             "With packing, let tokens attend to earlier documents in their row, and predict the first token "
             "of a document from the document before it. Otherwise documents in a row never see each other.");
}

Packing packing_by_strategy(PackingStrategy strategy, bool joined) {
  switch (strategy) {
    case PackingStrategy::kBfd:
      return Packing::kBestFit;
    case PackingStrategy::kBfdSplit:
      return Packing::kBestFitSplit;
    case PackingStrategy::kWrapped:
      return Packing::kWrapped;
    case PackingStrategy::kGreedyKnapsack:
      return Packing::kKnapsack;
    case PackingStrategy::kAuto:
    case PackingStrategy::kInOrder:
      break;
  }
  if (joined) return Packing::kJoined;
  return strategy == PackingStrategy::kAuto ? Packing::kByRows : Packing::kIsolated;
}

void check_joined(PackingStrategy strategy, bool joined, bool packing) {
  if (!joined) return;
  if (!packing) {
    fail(ExitCode::kBadConfig,
         "packing_cross_document_attention needs packing true: without packing a row is a document");
  }
  if (is_by_length(packing_by_strategy(strategy, joined))) {
    fail(
        ExitCode::kBadConfig,
        "packing_cross_document_attention contradicts packing_strategy {}, in which documents never see each "
        "other: take wrapped or in_order",
        strategy);
  }
}

bool splits_documents(const RunSpec& args) {
  if (args.data.validation_split_percentage == 0) return false;
  return is_by_length(args.data.packing_mode()) || args.data.packing_mode() != args.data.eval_packing_mode();
}

void resolve_data_order(const FlagTable& table, RunSpec* args) {
  const bool random = args->data.sampling_strategy != SamplingStrategy::kSequential;
  const bool is_grouped = args->data.sampling_strategy == SamplingStrategy::kGroupByLength;
  if (table.is_set("train_sampling_strategy") || is_grouped) {
    if (table.is_set("shuffle") && args->data.shuffle != random) {
      fail(ExitCode::kBadConfig, "shuffle {} contradicts train_sampling_strategy {}: give one of them",
           args->data.shuffle, args->data.sampling_strategy);
    }
    args->data.shuffle = random;
  }
  if (!is_grouped)
    args->data.sampling_strategy =
        args->data.shuffle ? SamplingStrategy::kRandom : SamplingStrategy::kSequential;
  if (is_grouped && args->data.streaming) {
    fail(ExitCode::kBadConfig,
         "train_sampling_strategy group_by_length needs the lengths of all rows, which streaming does not "
         "know: leave one of the two out");
  }
  const bool draws_more = args->objective.neftune_alpha ||
                          (args->lora.finetuning_type == FinetuningType::kLora && args->lora.dropout > 0);
  if (is_grouped && draws_more && args->batch.num_epochs > 1) {
    log_warning(
        "train_sampling_strategy group_by_length: from the second epoch on, Hugging Face's Trainer has "
        "another order with {}, which draws from the same numbers; here it is the one without",
        args->objective.neftune_alpha ? "neftune_noise_alpha" : "lora_dropout");
  }
}

void check_packing(const FlagTable& table, const RunSpec& args) {
  const bool is_packed = args.data.packing || args.data.eval_packing.value_or(false);
  check_joined(args.data.packing_strategy, args.data.packing_cross_document_attention, args.data.packing);
  if (table.is_set("packing_strategy") && !is_packed && args.data.packing_strategy != PackingStrategy::kBfd &&
      args.data.packing_strategy != PackingStrategy::kAuto)
    log_warning("packing_strategy has no effect: packing is false");
}

void check_token_average(const RunSpec& args, int64_t world_size) {
  if (args.objective.average_tokens_across_devices || world_size == 1) return;
  const auto refuse = [](bool found, const char* what) {
    if (!found) return;
    fail(ExitCode::kBadConfig,
         "average_tokens_across_devices false cannot be combined with {}: the mean over a rank's own rows "
         "counts, and which these are must follow from per_device_train_batch_size",
         what);
  };
  refuse(args.batch.global_rows.has_value(), "global_batch_size");
  refuse(args.sharding.context_parallel_size > 1, "context_parallel_size");
  refuse(args.outer.sync_every > 0, "sync_every");
}

Packing DataSpec::packing_mode() const { return packing ? packing_of_run(*this) : Packing::kNone; }

Packing DataSpec::eval_packing_mode() const {
  return eval_packing.value_or(packing) ? packing_of_run(*this) : Packing::kNone;
}

}  // namespace tessera
