#include "model/initialize.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

// T5PreTrainedModel._init_weights of transformers, where the range is initializer_factor: queries by the
// widths of their input and of a head, since scores are not scaled; other matrices by that of their input.
double deviation_in_t5(const Parameter& parameter, const ModelConfig& config) {
  if (is_vector(parameter.kind) || parameter.kind == ParameterKind::kEmbedding ||
      parameter.kind == ParameterKind::kLmHead)
    return config.initializer_range;
  const double width = static_cast<double>(
      parameter.kind == ParameterKind::kPositionBias ? config.hidden_size : parameter.shape.at(1));
  const double of_head =
      parameter.name.ends_with("Attention.q.weight") ? static_cast<double>(config.head_dim) : 1;
  return config.initializer_range / std::sqrt(width * of_head);
}

// ModernBertPreTrainedModel._init_weights: matrices whose result is added to the stream, and that of the
// head, by the number of layers.
double deviation_in_modernbert(const Parameter& parameter, const ModelConfig& config) {
  const bool is_output = parameter.name.ends_with(".Wo.weight") || parameter.name == "head.dense.weight";
  return is_output ? config.initializer_range / std::sqrt(2 * static_cast<double>(config.num_hidden_layers))
                   : config.initializer_range;
}

// The normal distribution that initial values are drawn from.
struct Normal {
  double deviation;
  double cutoff = 0;  // in deviations: values beyond are drawn again; 0: none
};

Normal distribution_of(const Parameter& parameter, const ModelConfig& config) {
  if (config.encoder_decoder) return {deviation_in_t5(parameter, config)};
  if (config.family == "modernbert")
    return {deviation_in_modernbert(parameter, config), config.encoder->initializer_cutoff_factor};
  return {config.initializer_range};
}

// The first of the numbers that belong to an element which is not beyond the cutoff.
float truncated_normal(uint64_t seed, uint64_t stream, uint64_t index, double cutoff) {
  constexpr uint64_t kNextStream = 0x9E3779B97F4A7C15;
  for (;; stream += kNextStream) {
    const float value = CounterRng(seed, stream).normal(index);
    if (std::abs(value) <= cutoff) return value;
  }
}

template <typename T>
void initialize(const Parameter& parameter, const Normal& normal, float norm, uint64_t seed, int64_t begin,
                std::span<T> destination) {
  if (is_vector(parameter.kind) && parameter.kind != ParameterKind::kSinks) {
    std::fill(destination.begin(), destination.end(),
              from_float<T>(parameter.kind == ParameterKind::kNorm ? norm : 0.0f));
    return;
  }
  if (parameter.kind == ParameterKind::kLoraB) return std::fill(destination.begin(), destination.end(), T{});
  const CounterRng rng(seed, hash_name(parameter.name));
  if (parameter.kind == ParameterKind::kLoraA) {
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape.back()));
    for (size_t i = 0; i < destination.size(); ++i) {
      const double uniform = rng.uniform(static_cast<uint64_t>(begin) + i);
      destination[i] = from_float<T>(static_cast<float>(bound * (2 * uniform - 1)));
    }
    return;
  }
  const auto range = static_cast<float>(normal.deviation);
  const auto first = static_cast<uint64_t>(begin);
  if (normal.cutoff > 0) {
    for (size_t i = 0; i < destination.size(); ++i)
      destination[i] =
          from_float<T>(range * truncated_normal(seed, hash_name(parameter.name), first + i, normal.cutoff));
    return;
  }
  std::array<float, 2> pair = {};
  for (size_t i = 0; i < destination.size(); ++i) {
    const uint64_t index = first + i;
    if (i == 0 || index % 2 == 0) pair = rng.normal_pair(index / 2);
    destination[i] = from_float<T>(range * pair[index % 2]);
  }
}

}  // namespace

void initialize_parameter(const Parameter& parameter, const ModelConfig& config, uint64_t seed, int64_t begin,
                          TensorView destination) {
  const int64_t count = destination.num_elements();
  TESSERA_CHECK(0 <= begin && begin + count <= parameter.num_elements, "{}: elements [{}, {}) of {}",
                parameter.name, begin, begin + count, parameter.num_elements);
  const auto size = static_cast<size_t>(count);
  const Normal normal = distribution_of(parameter, config);
  const float norm = config.norm == NormKind::kRmsPlusOne ? 0.0f : 1.0f;  // of a norm's weights
  switch (destination.dtype()) {
    case DType::kF32:
      return initialize<float>(parameter, normal, norm, seed, begin, {destination.as<float>(), size});
    case DType::kBF16:
      return initialize<bf16>(parameter, normal, norm, seed, begin, {destination.as<bf16>(), size});
    default:
      TESSERA_CHECK(false, "cannot initialise {} as {}", parameter.name, dtype_name(destination.dtype()));
  }
}

void initialize_elements(const ParameterLayout& layout, const ModelConfig& config, uint64_t seed,
                         int64_t begin, std::span<float> values) {
  std::ranges::fill(values, 0.0f);
  const int64_t end = begin + std::ssize(values);
  for (const Parameter& each : layout.parameters()) {
    const int64_t first = std::max(begin, each.offset), last = std::min(end, each.offset + each.num_elements);
    if (first >= last) continue;
    initialize_parameter(each, config, seed, first - each.offset,
                         TensorView(values.data() + (first - begin), DType::kF32, Shape({last - first})));
  }
  // T5 embeds the padding token like any other, and ModernBERT draws its values with the others.
  if (!config.pad_token_id || config.encoder_decoder || config.family == "modernbert") return;
  const int64_t padding_row = *config.pad_token_id * config.hidden_size;  // the embedding comes first
  for (int64_t i = std::max(begin, padding_row); i < std::min(end, padding_row + config.hidden_size); ++i)
    values[static_cast<size_t>(i - begin)] = 0;
}

}  // namespace tessera
