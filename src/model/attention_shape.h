#pragma once

#include <cstdint>

#include "formats/huggingface/model_config.h"
#include "kernels/attention/attention_shape.h"

namespace tessera {

// The heads of a layer, and what it attends to.
AttentionShape attention_shape(const ModelConfig& config, int64_t layer);

}  // namespace tessera
