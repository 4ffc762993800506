#include "model/attention_shape.h"

#include <cmath>

namespace tessera {

AttentionShape attention_shape(const ModelConfig& config, int64_t layer) {
  AttentionShape shape;
  shape.num_heads = config.num_attention_heads;
  shape.num_key_value_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.sliding_window =
      config.sliding_window.empty() ? 0 : config.sliding_window[static_cast<size_t>(layer)];
  const double usual = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  shape.scale = static_cast<float>(config.attention_scale == 0 ? usual : config.attention_scale);
  shape.softcap = static_cast<float>(config.attention_softcap);
  return shape;
}

}  // namespace tessera
