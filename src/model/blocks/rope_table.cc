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

// The blend of yarn for each frequency: 0 keeps it, 1 divides it by the factor.
std::vector<float> yarn_ramp(const Rope& rope, int64_t rotated) {
  const RopeScaling& scaling = rope.scaling;
  const auto dim = static_cast<double>(rotated);
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const auto index_of = [&](double turns) {
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = index_of(scaling.beta_fast), high = index_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<float> ramp;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const float at = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    ramp.push_back(std::clamp(at, 0.0f, 1.0f));
  }
  return ramp;
}

int64_t num_table_rows(const Rope& rope, int64_t num_positions) {
  const bool has_long_rows = position_offset(rope, num_positions, num_positions) > 0;
  return has_long_rows ? 2 * num_positions : num_positions;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config, const Rope& rope, bool is_long) {
  const int64_t rotated = rotated_elements(config);
  const auto theta = static_cast<float>(rope.theta);
  const RopeScaling& scaling = rope.scaling;
  const auto factor = static_cast<float>(scaling.factor);
  const std::vector<float> ramp =
      scaling.type == RopeType::kYarn ? yarn_ramp(rope, rotated) : std::vector<float>();
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotated; i += 2) {
    const auto at = static_cast<size_t>(i / 2);
    const float exponent = static_cast<float>(i) / static_cast<float>(rotated);
    // The power is computed in double and rounded: the most accurate float32 result.
    const auto power =
        static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    float f = 1.0f / power;
    switch (scaling.type) {
      case RopeType::kDefault:
        break;
      case RopeType::kLinear:
        f /= factor;
        break;
      case RopeType::kLlama3:
        f = llama3_frequency(f, scaling);
        break;
      case RopeType::kYarn:
        f = 1.0f / (factor * power) * ramp[at] + f * (1 - ramp[at]);
        break;
      case RopeType::kLongRope:
        f = 1.0f / (static_cast<float>((is_long ? scaling.long_factor : scaling.short_factor)[at]) * power);
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

int64_t position_offset(const Rope& rope, int64_t row_length, int64_t num_positions) {
  const RopeScaling& scaling = rope.scaling;
  return scaling.type == RopeType::kLongRope && row_length > scaling.original_max_position_embeddings
             ? num_positions
             : 0;
}

int64_t RopeTableBuffer::size_bytes(const ModelConfig& config, const Rope& rope, int64_t num_positions) {
  const int64_t width = rotated_elements(config) + (config.query_scale_beta != 0 ? 1 : 0);
  return num_table_rows(rope, num_positions) * width * static_cast<int64_t>(sizeof(float));
}

RopeTableBuffer::RopeTableBuffer(const ModelConfig& config, const Rope& rope, int64_t num_positions,
                                 Device& device)
    : memory_(device.allocate(size_bytes(config, rope, num_positions))),
      num_rows_(num_table_rows(rope, num_positions)),
      half_dim_(rotated_elements(config) / 2),
      interleaved_(config.rope_interleaved),
      scales_queries_(config.query_scale_beta != 0) {
  const std::vector<float> frequencies = rope_inverse_frequencies(config, rope);
  const std::vector<float> of_long_rows = rope_inverse_frequencies(config, rope, /*is_long=*/true);
  const auto attention_factor = static_cast<float>(rope.scaling.attention_factor);
  constexpr int64_t kRows = 256;  // computed before they are copied to the device
  std::vector<float> cos, sin, query_scale;
  for (int64_t begin = 0; begin < num_rows_; begin += kRows) {
    const int64_t end = std::min(begin + kRows, num_rows_);
    cos.clear();
    sin.clear();
    query_scale.clear();
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = row % num_positions;
      for (const float f : row < num_positions ? frequencies : of_long_rows) {
        const float angle = static_cast<float>(position) * f;
        cos.push_back(attention_factor * static_cast<float>(std::cos(static_cast<double>(angle))));
        sin.push_back(attention_factor * static_cast<float>(std::sin(static_cast<double>(angle))));
      }
      if (!scales_queries_) continue;
      const auto block = static_cast<double>(position / config.query_scale_positions);
      query_scale.push_back(static_cast<float>(1 + config.query_scale_beta * std::log(1 + block)));
    }
    const TensorView angles = memory_.view(DType::kF32, {2 * num_rows_, half_dim_});
    const Shape shape = {end - begin, half_dim_};
    copy(ConstTensorView(cos.data(), DType::kF32, shape), angles.rows(begin, end));
    copy(ConstTensorView(sin.data(), DType::kF32, shape), angles.rows(num_rows_ + begin, num_rows_ + end));
    if (!scales_queries_) continue;
    const int64_t first = 2 * num_rows_ * half_dim_;
    copy(ConstTensorView(query_scale.data(), DType::kF32, {end - begin}),
         memory_.view(DType::kF32, {first + num_rows_}).rows(first + begin, first + end));
  }
}

RopeTable RopeTableBuffer::table() const {
  const ConstTensorView angles = memory_.view(DType::kF32, {2 * num_rows_, half_dim_});
  RopeTable table = {angles.rows(0, num_rows_), angles.rows(num_rows_, 2 * num_rows_)};
  table.interleaved = interleaved_;
  if (scales_queries_) {
    const int64_t first = 2 * num_rows_ * half_dim_;
    table.query_scale =
        ConstTensorView(memory_.view(DType::kF32, {first + num_rows_})).rows(first, first + num_rows_);
  }
  return table;
}

}  // namespace tessera
