#include "forecast/instances/layout_flags.h"

#include <fmt/format.h>

#include <set>

namespace tessera {

bool is_layout_flag(const std::string& name) {
  static const std::set<std::string> kOfLayout = {"per_device_train_batch_size",
                                                  "gradient_accumulation_steps",
                                                  "global_batch_size",
                                                  "gradient_checkpointing",
                                                  "zero_stage",
                                                  "gather_schedule"};
  return kOfLayout.contains(name);
}

std::vector<std::string> layout_words(const RunLayout& layout, int64_t step_rows) {
  std::vector<std::string> words = {fmt::format("--per_device_train_batch_size {}", layout.micro_batch_rows),
                                    fmt::format("--gradient_accumulation_steps {}", layout.accumulation)};
  if (layout.micro_batch_rows * layout.accumulation * layout.world_size() != step_rows) {
    words.push_back(fmt::format("--global_batch_size {}", step_rows));
  }
  if (layout.gradient_checkpointing) words.emplace_back("--gradient_checkpointing");
  if (layout.world_size() > 1) words.push_back(fmt::format("--zero_stage {}", layout.zero_stage));
  if (layout.schedule == GatherSchedule::kPerLayer) words.emplace_back("--gather_schedule per_layer");
  return words;
}

SearchOptions asked_options(const ShardingSpec& sharding, const PlacementSpec& placement,
                            bool checkpointing_is_given) {
  SearchOptions options;
  if (sharding.stage) options.zero_stage = static_cast<int>(*sharding.stage);
  if (sharding.gather_schedule != GatherChoice::kAuto) {
    options.schedule = sharding.gather_schedule == GatherChoice::kPerLayer ? GatherSchedule::kPerLayer
                                                                           : GatherSchedule::kPerStep;
  }
  if (checkpointing_is_given) options.gradient_checkpointing = placement.gradient_checkpointing;
  return options;
}

}  // namespace tessera
