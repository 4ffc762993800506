#include "train/setup/run_loading.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <vector>

#include "io/disk_rate.h"
#include "io/file.h"
#include "model/attention_shape.h"
#include "model/blocks/moe_block.h"
#include "model/initialize.h"
#include "platform/memory_info.h"
#include "report/run_phase.h"

namespace tessera {
namespace {

// Rank 0's disk stands for the other ranks' disks.
void prepare_disk(RunSetup& setup) {
  create_folder(setup.spec.placement.offload_dir);
  if (setup.spec.reporting.measure_peak && setup.is_root() && !setup.disk_rate) {
    setup.disk_rate = measure_disk_rate(setup.spec.placement.offload_dir, setup.spec.placement.transfers);
  }
}

std::function<void(const LoadProgress&)> loading_progress(RunSetup& setup) {
  return [&setup](const LoadProgress& progress) {
    setup.observers.on_loading(progress.fraction(), progress.bytes_per_second());
  };
}

void initialize_adapters(RunSetup& setup, const ElementRange& range) {
  std::vector<float> values;
  for (const Parameter& parameter : setup.model->layout().parameters()) {
    const int64_t begin = std::max(range.begin, parameter.offset);
    const int64_t end = std::min(range.end, parameter.offset + parameter.num_elements);
    if (begin >= end) continue;
    values.resize(static_cast<size_t>(end - begin));
    initialize_parameter(parameter, setup.model->config(), static_cast<uint64_t>(setup.spec.seed),
                         begin - parameter.offset, TensorView(values.data(), DType::kF32, {end - begin}));
    setup.parameters->state().write(StateKind::kMaster, begin, values);
  }
}

// Loads the weights, or for adapters those of adapter_name_or_path or new ones.
void load_parameters(RunSetup& setup) {
  const LoadOnce once = setup.spec.sharding.load_once;
  if (!setup.frozen) return setup.parameters->state().load(*setup.model_file, once, loading_progress(setup));
  if (!setup.spec.lora.adapter.empty()) {
    const auto file =
        SafetensorsModel::open(std::filesystem::path(setup.spec.lora.adapter) / kAdapterFileName);
    return setup.parameters->state().load(file, once, {});
  }
  for (const ElementRange& range : setup.parameters->state().kept()) initialize_adapters(setup, range);
  setup.parameters->state().written();
}

}  // namespace

void load_run(RunSetup& setup) {
  const RunSpec& spec = setup.spec;
  mark_phase(setup.comm, RunPhase::kLoadingWeights, 1);
  if (!spec.placement.offload_dir.empty()) prepare_disk(setup);
  if (setup.model->is_adapted()) {
    setup.frozen.emplace(*setup.model, setup.comm, setup.pool, setup.plan.zero);
  }
  setup.parameters =
      std::make_unique<ParameterStore>(*setup.model, setup.plan.zero, make_optimizer(spec.optimizer),
                                       spec.optimizer.weight_decay_norms, setup.comm, setup.pool);
  if (setup.plan.limits.offload_inputs) {
    setup.model->offload_inputs_to(
        std::filesystem::path(spec.placement.offload_dir) / fmt::format("rank-{}.inputs", setup.world().rank),
        spec.placement.transfers);
  }
  setup.model->reserve(setup.plan.limits);
  if (setup.context) {
    setup.context->open(setup.comm, attention_shape(setup.model->config(), 0), setup.model->dtype(),
                        setup.plan.limits.max_tokens, setup.pool);
  }
  if (setup.plan.zero.divides_experts) {
    const ModelConfig& config = setup.model->config();
    setup.experts.emplace(setup.comm, config.experts->num_experts,
                          max_chunk_rows(config, setup.plan.limits.max_tokens),
                          config.hidden_size * dtype_bytes(setup.model->dtype()), setup.pool);
    setup.model->exchange_rows_with(*setup.experts);
  }
  if (setup.frozen) {
    setup.record.base = setup.frozen->load(*setup.model_file, loading_progress(setup));
    if (*setup.resume) setup.resume->check_base(setup.record);
  }
  if (*setup.resume) {
    setup.resume->load(*setup.model, setup.parameters->state(), setup.pool, setup.observers);
  } else {
    load_parameters(setup);
  }
  setup.model_file.reset();
  setup.loading_peak_bytes = peak_resident_bytes();
}

}  // namespace tessera
