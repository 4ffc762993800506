#include "model/blocks/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {
namespace {

float llama3_frequency(float f, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const auto length = static_cast<float>(scaling.original_max_position_embeddings);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
  if (wavelength > length / low) return f / factor;
  if (wavelength < length / high) return f;
  const float smooth = (length / wavelength - low) / (high - low);
  return (1 - smooth) * f / factor + smooth * f;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  const auto head_dim = static_cast<float>(config.head_dim);
  const auto theta = static_cast<float>(config.rope_theta);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / head_dim;
    // The power is computed in double and rounded: the most accurate float32 result.
    float f = 1.0f / static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    switch (config.rope_scaling.type) {
      case RopeType::kDefault:
        break;
      case RopeType::kLinear:
        f /= static_cast<float>(config.rope_scaling.factor);
        break;
      case RopeType::kLlama3:
        f = llama3_frequency(f, config.rope_scaling);
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

int64_t RopeTableBuffer::size_bytes(const ModelConfig& config, int64_t num_positions) {
  return num_positions * config.head_dim * static_cast<int64_t>(sizeof(float));
}

RopeTableBuffer::RopeTableBuffer(const ModelConfig& config, int64_t num_positions, Device& device)
    : memory_(device.allocate(size_bytes(config, num_positions))),
      num_positions_(num_positions),
      half_dim_(config.head_dim / 2) {
  const std::vector<float> frequencies = rope_inverse_frequencies(config);
  const TensorView table = memory_.view(DType::kF32, {2 * num_positions, half_dim_});
  constexpr int64_t kPositions = 256;  // computed before they are copied to the device
  std::vector<float> cos, sin;
  for (int64_t begin = 0; begin < num_positions; begin += kPositions) {
    const int64_t end = std::min(begin + kPositions, num_positions);
    cos.clear();
    sin.clear();
    for (int64_t position = begin; position < end; ++position) {
      for (const float f : frequencies) {
        const float angle = static_cast<float>(position) * f;
        cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
        sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
      }
    }
    const Shape shape = {end - begin, half_dim_};
    copy(ConstTensorView(cos.data(), DType::kF32, shape), table.rows(begin, end));
    copy(ConstTensorView(sin.data(), DType::kF32, shape),
         table.rows(num_positions + begin, num_positions + end));
  }
}

RopeTable RopeTableBuffer::table() const {
  const ConstTensorView table = memory_.view(DType::kF32, {2 * num_positions_, half_dim_});
  return {table.rows(0, num_positions_), table.rows(num_positions_, 2 * num_positions_)};
}

}  // namespace tessera
