// Cosines and sines of the rotary embedding, computed as Hugging Face transformers does
// (modeling_rope_utils.py): inverse frequencies and angles in float32.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace tessera {

// E / 2 inverse frequencies, i = 0 .. E/2 - 1:  f_i = 1 / theta^(2i / E), then by rope_scaling.type
//   linear: f / factor
//   llama3, with L = original_max_position_embeddings and wavelength w = 2 pi / f:
//     w > L / low_freq_factor:  f / factor        w < L / high_freq_factor:  f
//     between: (1 - s) f / factor + s f,  s = (L / w - low_freq_factor) / (high_freq_factor -
//     low_freq_factor)
std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

// cos and sin of position * f_i for positions [0, num_positions), in the memory of a device.
class RopeTableBuffer {
 public:
  RopeTableBuffer() = default;
  RopeTableBuffer(const ModelConfig& config, int64_t num_positions, Device& device = host_device());

  // Does not allocate.
  static int64_t size_bytes(const ModelConfig& config, int64_t num_positions);

  RopeTable table() const;
  int64_t size_bytes() const { return memory_.size_bytes(); }

 private:
  DeviceBuffer memory_;  // F32 cos [positions, E / 2], then sin
  int64_t num_positions_ = 0;
  int64_t half_dim_ = 0;
};

}  // namespace tessera
