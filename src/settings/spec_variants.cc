#include "settings/spec_variants.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "settings/resolve.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

using nlohmann::json;

// Settings that change the numbers of a run. The settings of one group belong together.
const std::vector<std::vector<const char*>> kKeptOnResume = {
    {"optim"},
    {"clip_mode"},
    {"quantization_bit", "load_in_8bit", "load_in_4bit", "bnb_4bit_use_double_quant"}};

// The form that a flag takes.
std::string value_text(const json& setting) {
  return setting.is_null() ? "none" : setting.is_string() ? setting.get<std::string>() : setting.dump();
}

}  // namespace

FitCandidate candidate_of(const RunSpec& spec) {
  return {spec.optimizer.form,
          spec.placement.optimizer_device,
          spec.placement.param_device,
          spec.placement.optimizer_in_backward,
          spec.clipping.mode,
          spec.placement.gradient_checkpointing,
          spec.placement.checkpointing_mode,
          spec.base.bits};
}

RunSpec with_candidate(const RunSpec& spec, const FitCandidate& candidate, int64_t world_size, bool fit) {
  RunSettings out = spec;
  out.placement.fit = false;
  out.optimizer.form = candidate.optimizer;
  out.placement.optimizer_device = candidate.state;
  out.placement.param_device = candidate.weights;
  out.placement.optimizer_in_backward = candidate.updates_in_backward;
  out.clipping.mode = candidate.clip;
  out.placement.gradient_checkpointing = candidate.recomputes;
  out.placement.checkpointing_mode = candidate.recomputed;
  out.base.bits = candidate.base_bits;
  resolve_placement(FlagTable(), world_size, &out);
  out.placement.fit = fit;
  return out;
}

RunSpec with_rows(const RunSpec& spec, const RowDivision& rows) {
  RunSettings out = spec;
  out.batch.rows_per_device = rows.rows_per_device;
  out.batch.accumulation_steps = rows.accumulation_steps;
  out.batch.global_rows = rows.step_rows;
  return out;
}

RunSpec with_layout(const RunSpec& spec, const RowDivision& rows, int64_t zero_stage, GatherChoice schedule,
                    bool gradient_checkpointing) {
  RunSettings out = with_rows(spec, rows);
  out.sharding.stage = zero_stage;
  out.sharding.gather_schedule = schedule;
  out.placement.gradient_checkpointing = gradient_checkpointing;
  return out;
}

RunSpec with_adapters(const RunSpec& spec) {
  RunSettings out = spec;
  out.lora.finetuning_type = FinetuningType::kLora;
  return out;
}

RunSpec without_given_adapter(const RunSpec& spec) {
  RunSettings out = spec;
  out.lora.adapter.clear();
  return out;
}

RunSpec without_evaluation(const RunSpec& spec) {
  RunSettings out = spec;
  out.evaluation.strategy = IntervalStrategy::kNo;
  out.evaluation.on_start = false;
  return out;
}

RunSpec continued(const RunSpec& spec, const json& then, const std::string& origin) {
  RunSettings out = spec;
  FlagTable table;
  declare_training_flags(&table, &out);
  for (const std::vector<const char*>& group : kKeptOnResume) {
    if (std::ranges::any_of(group, [&](const char* name) { return spec.sources.given.contains(name); }))
      continue;
    for (const char* name : group) {
      const auto value = then.find(name);
      if (value == then.end()) continue;
      table.set(*table.find(name), {value_text(*value)}, origin);
      out.sources.given[name] = {SettingOrigin::kCheckpoint, origin};
    }
  }
  return out;
}

DataSpec packed_in_order(const DataSpec& data) {
  DataSpec out = data;
  out.packing_strategy = PackingStrategy::kInOrder;
  return out;
}

}  // namespace tessera
