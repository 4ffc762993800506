#include "settings/foreign/deepspeed_notes.h"

#include <map>
#include <string>
#include <vector>

#include "base/log.h"

namespace tessera {
namespace {

// Keys that take effect once there are several ranks.
std::vector<std::string> keys_for_several_ranks(const DeepSpeedConfig& config) {
  const std::string zero = "zero_optimization.";
  std::vector<std::string> keys;
  if (config.zero_stage.value_or(0) > 0) keys.push_back(zero + "stage");
  if (config.stage3_max_live_parameters) keys.push_back(zero + "stage3_max_live_parameters");
  if (!config.stage3_prefetch_bucket_size.is_absent()) keys.push_back(zero + "stage3_prefetch_bucket_size");
  if (!config.stage3_param_persistence_threshold.is_absent())
    keys.push_back(zero + "stage3_param_persistence_threshold");
  if (config.overlap_comm) keys.push_back(zero + "overlap_comm");
  if (config.zero_quantized_weights) keys.push_back(zero + "zero_quantized_weights");
  if (config.zero_quantized_gradients) keys.push_back(zero + "zero_quantized_gradients");
  if (config.communication_data_type) keys.push_back("communication_data_type");
  return keys;
}

}  // namespace

void log_deepspeed_notes(const DeepSpeedConfig& config, int64_t world_size) {
  std::map<std::string, std::vector<std::string>> keys_by_reason;
  if (world_size == 1) {
    const std::vector<std::string> keys = keys_for_several_ranks(config);
    if (!keys.empty()) keys_by_reason["there is one rank"] = keys;
  }
  for (const DeepSpeedNote& note : config.notes) {
    if (note.is_warning) {
      log_warning("{}: {}: {}", config.origin, note.key, note.text);
    } else {
      keys_by_reason[note.text].push_back(note.key);
    }
  }
  for (const auto& [reason, keys] : keys_by_reason) {
    log_info("{}: without effect, as {}: {}", config.origin, reason, fmt::join(keys, ", "));
  }
}

}  // namespace tessera
