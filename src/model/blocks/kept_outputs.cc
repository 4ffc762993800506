#include "model/blocks/kept_outputs.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/error.h"
#include "model/blocks/norm.h"
#include "model/flops.h"

namespace tessera {
namespace {

// One output of one layer, and the floating-point operations per byte that keeping it saves.
struct KeepableOutput {
  bool KeptOutputs::*output;
  size_t layer;
  double flop_per_byte;
};

// Pairs of a query and a key that a layer computes, per query of rows of the greatest length. Half of a row
// with a source is its target.
double pairs_per_token(const ModelConfig& config, size_t layer, int64_t row_tokens) {
  const auto length = static_cast<double>(row_tokens);
  const int64_t window = config.sliding_window.empty() ? 0 : config.sliding_window[layer];
  if (config.encoder) {
    AttentionInputs inputs;
    const std::array<int32_t, 2> starts = {0, static_cast<int32_t>(row_tokens)};
    inputs.cu_queries = inputs.cu_keys = starts;
    inputs.causal = false;
    return attention_pairs(inputs, window) / length;
  }
  if (!config.encoder_decoder) return causal_pairs(row_tokens, window) / length;
  if (static_cast<int64_t>(layer) < config.encoder_decoder->num_encoder_layers) return length / 2;
  return length / 4 + length / 2;
}

// Per token of rows of the greatest length. The norm and rotation that are recomputed with qkv, and the sum
// that is recomputed with the stream, only break ties: outputs of equal cost are listed in that order.
std::vector<KeepableOutput> keepable_outputs(const ModelConfig& config, DType dtype, int64_t row_tokens) {
  // Attention reaches this much less of the peak than products do (forecast/time/machine_rates.h).
  constexpr double kAttentionSlowdown = 0.55 / 0.35;
  const auto A = static_cast<double>(dtype_bytes(dtype));
  const auto D = static_cast<double>(config.hidden_size);
  const auto H = static_cast<double>(config.num_attention_heads);
  const auto G = static_cast<double>(config.num_key_value_heads);
  const auto E = static_cast<double>(config.head_dim);
  const double Q = (H + 2 * G) * E;
  const bool has_raw = block_output(config).has_norm;  // kept with the stream, and with gate_up
  const double F = static_cast<double>(config.intermediate_size);
  const double qkv_bytes = A * Q + (config.qk_norm ? A * Q + 4 * (H + G) : 0);

  std::vector<KeepableOutput> outputs;
  const auto num_layers = static_cast<size_t>(config.num_hidden_layers);
  const auto add = [&](bool KeptOutputs::*output, size_t layer, double flop_per_byte) {
    const bool is_recomputed_by_last = output == &KeptOutputs::gate_up;
    if (is_recomputed_by_last || !is_last_of_its_stack(config, static_cast<int64_t>(layer)))
      outputs.push_back({output, layer, flop_per_byte});
  };
  for (size_t layer = 0; layer < num_layers; ++layer) add(&KeptOutputs::qkv, layer, 2 * D * Q / qkv_bytes);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const bool has_two =
        config.encoder_decoder && static_cast<int64_t>(layer) >= config.encoder_decoder->num_encoder_layers;
    const double bytes = (has_two ? 2 : 1) * (A * H * E + 4 * H);
    add(&KeptOutputs::attention, layer,
        kAttentionSlowdown * 4 * H * E * pairs_per_token(config, layer, row_tokens) / bytes);
  }
  for (size_t layer = 0; layer < num_layers; ++layer)
    add(&KeptOutputs::stream, layer, (has_raw ? 1 : 2) * H * E / A);
  for (size_t layer = 0; layer < num_layers; ++layer)
    add(&KeptOutputs::gate_up, layer, has_raw ? 6 * D * F / (A * (2 * F + D)) : 2 * D / A);
  std::ranges::stable_sort(outputs, std::greater(), &KeepableOutput::flop_per_byte);
  return outputs;
}

}  // namespace

bool is_last_of_its_stack(const ModelConfig& config, int64_t layer) {
  return layer + 1 == config.num_hidden_layers ||
         (config.encoder_decoder && layer + 1 == config.encoder_decoder->num_encoder_layers);
}

int64_t num_keepable_outputs(const ModelConfig& config) {
  const int64_t num_stacks = config.encoder_decoder ? 2 : 1;
  return 4 * config.num_hidden_layers - 3 * num_stacks;
}

std::vector<KeptOutputs> kept_outputs(const ModelConfig& config, DType dtype,
                                      const ActivationLimits& limits) {
  const bool keeps_all = limits.training && !limits.gradient_checkpointing;
  std::vector<KeptOutputs> kept(static_cast<size_t>(config.num_hidden_layers),
                                {keeps_all, keeps_all, keeps_all, keeps_all});
  if (limits.num_kept_outputs == 0) return kept;
  TESSERA_CHECK(limits.training && limits.gradient_checkpointing && limits.num_kept_outputs > 0 &&
                    limits.num_kept_outputs <= num_keepable_outputs(config),
                "{} of {} outputs are to be kept", limits.num_kept_outputs, num_keepable_outputs(config));
  const std::vector<KeepableOutput> outputs = keepable_outputs(config, dtype, limits.max_sequence_length);
  for (int64_t i = 0; i < limits.num_kept_outputs; ++i) {
    const KeepableOutput& each = outputs[static_cast<size_t>(i)];
    kept[each.layer].*each.output = true;
  }
  return kept;
}

int64_t num_recomputed_attentions(const ModelConfig& config, DType dtype, const ActivationLimits& limits) {
  if (!limits.gradient_checkpointing) return 0;
  const std::vector<KeptOutputs> kept = kept_outputs(config, dtype, limits);
  int64_t count = 0;
  for (size_t layer = 0; layer < kept.size(); ++layer)
    count += !kept[layer].attention && !is_last_of_its_stack(config, static_cast<int64_t>(layer)) ? 1 : 0;
  return count;
}

}  // namespace tessera
