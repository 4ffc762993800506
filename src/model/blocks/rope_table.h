// Cosines and sines of the rotary embedding, computed as Hugging Face transformers does
// (modeling_rope_utils.py): inverse frequencies and angles in float32.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace tessera {

// R / 2 inverse frequencies of R rotated elements, i = 0 .. R/2 - 1:  f_i = 1 / theta^(2i / R), then by
// scaling.type
//   linear: f / factor
//   llama3, with L = original_max_position_embeddings and wavelength w = 2 pi / f:
//     w > L / low_freq_factor:  f / factor        w < L / high_freq_factor:  f
//     between: (1 - s) f / factor + s f,  s = (L / w - low_freq_factor) / (high_freq_factor -
//     low_freq_factor)
//   yarn (Peng et al., 2023): (1 - r) f + r f / factor,  r = clamp((i - low) / (high - low), 0, 1), where low
//     and high are the i whose frequencies turn beta_fast and beta_slow times over L, rounded outwards if
//     `truncate`
//   longrope (Ding et al., 2024): f / short_factor_i, or f / long_factor_i if `is_long`
std::vector<float> rope_inverse_frequencies(const ModelConfig& config, const Rope& rope,
                                            bool is_long = false);

// attention_factor times cos and sin of position * f_i for positions [0, num_positions), and factors of
// queries if the model has them, in the memory of a device. Rows longer than the original length of longrope
// have a second part of the table: position_offset().
class RopeTableBuffer {
 public:
  RopeTableBuffer() = default;
  RopeTableBuffer(const ModelConfig& config, const Rope& rope, int64_t num_positions,
                  Device& device = host_device());
  RopeTableBuffer(const ModelConfig& config, int64_t num_positions, Device& device = host_device())
      : RopeTableBuffer(config, global_rope(config), num_positions, device) {}

  // Does not allocate.
  static int64_t size_bytes(const ModelConfig& config, const Rope& rope, int64_t num_positions);
  static int64_t size_bytes(const ModelConfig& config, int64_t num_positions) {
    return size_bytes(config, global_rope(config), num_positions);
  }

  RopeTable table() const;
  int64_t size_bytes() const { return memory_.size_bytes(); }

 private:
  DeviceBuffer memory_;  // F32 cos [rows, R / 2], then sin, then query_scale [rows]
  int64_t num_rows_ = 0;
  int64_t half_dim_ = 0;
  bool interleaved_ = false, scales_queries_ = false;
};

// What is added to the positions of a row of this length in a table of num_positions: 0, or num_positions
// where longrope's frequencies are those of long rows.
int64_t position_offset(const Rope& rope, int64_t row_length, int64_t num_positions);

}  // namespace tessera
