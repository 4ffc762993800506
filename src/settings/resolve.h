// The parts of read_run_spec(): each fills in what follows from other settings, warns of what has no
// effect and refuses contradictions (kBadConfig). `table` knows which flags were given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "base/flags.h"
#include "base/log.h"
#include "settings/run_spec.h"

namespace tessera {

// Warns of each of these flags that was given that it has no effect.
template <typename... Args>
void warn_if_set(const FlagTable& table, std::initializer_list<const char*> names,
                 fmt::format_string<Args...> reason, Args&&... args) {
  for (const char* name : names) {
    if (table.is_set(name))
      log_warning("{} has no effect: {}", name, fmt::format(reason, std::forward<Args>(args)...));
  }
}

void resolve_dtype(const FlagTable& table, PrecisionSpec* precision);
void resolve_batch(const FlagTable& table, int64_t num_ranks, RunSettings* spec);
// Reads lr_scheduler_kwargs, whose keywords depend on lr_scheduler_type, and checks what can be checked
// before the length of the run is known.
void resolve_schedule(RunSettings* spec);
void check_lora(const FlagTable& table, const RunSpec& spec);
void check_base_quantization(const FlagTable& table, const BaseSpec& base, FinetuningType finetuning);

// zero_stage for messages, with what decided it if that is not the flag: "2 (--fsdp shard_grad_op)".
std::string stage_text(const RunSpec& spec);
void check_context_ranks(int64_t context_parallel_size, int64_t world_size);
void check_context(const RunSpec& spec);
void resolve_ranks(const FlagTable& table, int64_t world_size, RunSettings* spec);
void check_outer(const FlagTable& table, const RunSpec& spec);
void check_device(const RunSpec& spec, int64_t world_size);

void check_checkpointing(const FlagTable& table, const PlacementSpec& placement);
void resolve_optimizer_in_backward(const FlagTable& table, int64_t world_size, RunSettings* spec);
// Sets offload_dir if something goes there.
void resolve_offload(const FlagTable& table, int64_t world_size, RunSettings* spec);
// The two above: all that follows from where state is kept and when weights are updated.
void resolve_placement(const FlagTable& table, int64_t world_size, RunSettings* spec);
void check_optimizer(const FlagTable& table, const OptimizerSpec& optimizer, const SavingSpec& saving);

// Makes shuffle and train_sampling_strategy agree.
void resolve_data_order(const FlagTable& table, RunSettings* spec);
void check_packing(const FlagTable& table, const DataSpec& data);
void check_token_average(const RunSpec& spec, int64_t world_size);
// Streams the rows of a spool.
void resolve_spool(const FlagTable& table, const BatchSpec& batch, DataSpec* data);
void check_streaming(const DataSpec& data, const BatchSpec& batch);
void check_quiet(const ReportingSpec& reporting);
void resolve_evaluation(RunSettings* spec);
void resolve_best_model(const FlagTable& table, RunSettings* spec);

}  // namespace tessera
