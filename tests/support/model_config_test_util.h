// config.json for tests.
#pragma once

#include <string>

#include "formats/json.h"

namespace tessera {

// A small valid config with fields replaced or added; null erases a field.
inline Json base_config(const std::string& model_type, const Json& changes = Json::object()) {
  Json config = {{"model_type", model_type}, {"vocab_size", 1000},     {"hidden_size", 256},
                 {"intermediate_size", 640}, {"num_hidden_layers", 4}, {"num_attention_heads", 8},
                 {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},   {"torch_dtype", "bfloat16"}};
  for (const auto& [name, value] : changes.items()) {
    if (value.is_null()) {
      config.erase(name);
    } else {
      config[name] = value;
    }
  }
  return config;
}

inline const Json kLlama3Rope = {{"rope_type", "llama3"},
                                 {"factor", 32.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};

}  // namespace tessera
