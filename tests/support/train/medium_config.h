// For tests: a model large enough for its memory to be measured.
#pragma once

#include "support/train/train_test_support.h"

namespace tessera {

// 34 million parameters in 8 layers.
inline ModelConfig medium_config() {
  ModelConfig config = tiny_config();
  config.vocab_size = 8000;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = 256;
  return config;
}

}  // namespace tessera
