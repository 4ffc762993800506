#include "settings/derived.h"

#include <algorithm>
#include <cmath>

#include "base/divide_up.h"
#include "base/error.h"
#include "settings/run/seq2seq_settings.h"

namespace tessera {
namespace {

// State that is read long before it is used must not keep weights and inputs of layers, which the next layer
// waits for, from the disk that they share.
constexpr int64_t kStateShareOfQueue = 4;

AsyncFileSettings state_transfers(const PlacementSpec& placement) {
  AsyncFileSettings transfers = placement.transfers;
  if (placement.param_device == OffloadDevice::kNvme || placement.offloads_inputs()) {
    transfers.queue_depth = divide_up(transfers.queue_depth, kStateShareOfQueue);
  }
  return transfers;
}

Packing packing_of_run(const DataSpec& data) {
  const Packing packing = packing_by_strategy(data.packing_strategy, data.packing_cross_document_attention);
  const bool is_in_order = packing == Packing::kByRows && data.validation_split_percentage > 0;
  return is_in_order ? Packing::kIsolated : packing;
}

bool is_by_length(Packing packing) {
  return packing == Packing::kBestFit || packing == Packing::kBestFitSplit || packing == Packing::kKnapsack;
}

}  // namespace

int64_t num_row_ranks(const ShardingSpec& sharding, int64_t world_size) {
  return std::max<int64_t>(1, world_size / sharding.context_parallel_size);
}

std::optional<OuterSettings> outer_settings_of(const OuterSettings& outer) {
  return outer.sync_every > 0 ? std::optional(outer) : std::nullopt;
}

ZeroSettings zero_settings_of(const RunSpec& spec, const ModelConfig& config, int64_t passes_per_step) {
  ZeroSettings zero;
  zero.stage = static_cast<int>(spec.sharding.stage.value_or(0));
  zero.schedule = spec.sharding.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer
                                                                           : GatherSchedule::kPerStep;
  zero.passes_per_step = passes_per_step;
  zero.weight_dtype = spec.precision.dtype;
  zero.network_dtype = spec.sharding.communication_dtype.value_or(zero.weight_dtype);
  zero.quantized_weights = spec.sharding.quantized_weights;
  zero.quantized_gradients = spec.sharding.quantized_gradients;
  zero.gradient_dtype = spec.sharding.accumulation_dtype();
  zero.max_live_elements = spec.sharding.max_live_parameters;
  zero.prefetch_elements = spec.sharding.prefetch_elements(config.hidden_size);
  zero.overlap = spec.sharding.overlap_comm;
  zero.state_tensors = state_tensors_of(spec.optimizer);
  zero.outer = outer_settings_of(spec.outer);
  zero.optimizer_in_backward = spec.placement.optimizer_in_backward;
  zero.parameters_on_host = spec.placement.param_device != OffloadDevice::kNone;
  zero.optimizer_on_host = spec.placement.optimizer_is_on_host();
  zero.computes_twice = spec.computes_norm_first();
  if (spec.placement.optimizer_device == OffloadDevice::kNvme) {
    zero.state_folder = {spec.placement.offload_dir, state_transfers(spec.placement)};
  }
  if (spec.placement.param_device == OffloadDevice::kNvme) {
    (config.lora ? zero.frozen_folder : zero.weight_folder) = {spec.placement.offload_dir,
                                                               spec.placement.transfers};
  }
  zero.persistence_threshold = spec.sharding.persistence_threshold_elements(config.hidden_size);
  return zero;
}

std::vector<StateTensor> saved_tensors_of(const RunSpec& spec, int num_nodes) {
  ZeroSettings zero;
  zero.state_tensors = state_tensors_of(spec.optimizer);
  zero.quantized_gradients = spec.sharding.quantized_gradients;
  zero.outer = outer_settings_of(spec.outer);
  return saved_tensors(zero, num_nodes);
}

bool may_gather_per_layer(const RunSpec& spec, int num_nodes) {
  return num_nodes > 1 && spec.sharding.stage == 3 && spec.outer.sync_every == 0 &&
         spec.sharding.gather_schedule == GatherChoice::kAuto &&
         spec.placement.pack_weights != AutoChoice::kAlways;
}

Quantization base_quantization_of(const BaseSpec& base) {
  switch (base.bits_wanted()) {
    case 8:
      return Quantization::kInt8;
    case 4:
      return base.double_quant.value_or(base.bits.has_value()) ? Quantization::kNf4Double
                                                               : Quantization::kNf4;
    default:
      return Quantization::kNone;
  }
}

std::optional<int64_t> serving_port(const ReportingSpec& reporting) {
  if (reporting.metrics_port) return reporting.metrics_port;
  if (!reporting.reports_to(ReportTo::kPrometheus) && !reporting.reports_to(ReportTo::kDashboard))
    return std::nullopt;
  return kDefaultMetricsPort;
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

bool splits_documents(const DataSpec& data) {
  if (data.validation_split_percentage == 0) return false;
  return is_by_length(data.packing_mode()) || data.packing_mode() != data.eval_packing_mode();
}

int64_t interval_in_steps(double interval, int64_t num_training_steps) {
  if (interval >= 1) return static_cast<int64_t>(interval);
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(static_cast<double>(num_training_steps) * interval)));
}

Packing DataSpec::packing_mode() const { return packing ? packing_of_run(*this) : Packing::kNone; }

Packing DataSpec::eval_packing_mode() const {
  return eval_packing.value_or(packing) ? packing_of_run(*this) : Packing::kNone;
}

LogLevel ReportingSpec::lowest_log_level() const {
  return log_level.value_or(quiet ? LogLevel::kWarning : LogLevel::kInfo);
}

int64_t ShardingSpec::prefetch_elements(int64_t hidden_size) const {
  return prefetch_bucket_size.value_or(hidden_size * hidden_size * 9 / 10);
}

int64_t ShardingSpec::persistence_threshold_elements(int64_t hidden_size) const {
  return persistence_threshold.value_or(10 * hidden_size);
}

int64_t DataSpec::row_limit(const ModelConfig& config) const {
  if (config.encoder_decoder) return source_target_limit(source_target, max_length);
  if (config.encoder) {
    const bool is_limited = max_length.value_or(kMaxRowLength) != kMaxRowLength;
    return is_limited ? *max_length : config.max_position_embeddings;
  }
  const bool has_rows = !dataset.empty() || !dataset_spool.empty();
  if (max_length && (*max_length != kMaxRowLength || has_rows)) return *max_length;
  const bool is_text = dataset.empty() || needs_tokenizer(dataset);
  return is_text ? default_row_limit(config.max_position_embeddings) : config.max_position_embeddings;
}

BatchPlanOptions RunSettings::batch_options(int64_t world_size) const {
  BatchPlanOptions options;
  options.num_rows = 0;
  options.micro_batch_size = batch.rows_per_device;
  options.gradient_accumulation_steps = batch.accumulation_steps;
  options.world_size = num_row_ranks(sharding, world_size);
  options.global_batch_size = batch.global_rows;
  options.shuffle = data.shuffle;
  // Grouping by length draws from the generator that the Trainer seeds with `seed`, whatever data_seed is.
  const bool is_grouped = data.sampling_strategy == SamplingStrategy::kGroupByLength;
  options.seed = is_grouped ? static_cast<uint64_t>(seed) : shuffle_seed();
  options.drop_last = data.drop_last;
  return options;
}

}  // namespace tessera
