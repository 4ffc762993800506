// What differs between the model families, and which fields of config.json are understood, harmless or
// rejected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/huggingface/model_config.h"

namespace tessera {

// Defaults of absent fields, from transformers' configuration classes.
struct FamilyInfo {
  ModelFamily family;
  std::string model_type;
  std::string architecture;
  int64_t num_key_value_heads;  // 0 = as many as query heads
  int64_t head_dim;             // 0 = hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  int64_t sliding_window;  // 0 = none
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
};

const std::vector<FamilyInfo>& model_families();
const FamilyInfo& family_info(ModelFamily family);

// A field that changes the model in a way we do not support, and its only accepted value (JSON text; null =
// must be absent).
struct UnsupportedField {
  const char* name;
  const char* neutral;
};

const std::vector<UnsupportedField>& unsupported_fields();

const std::vector<std::string>& understood_fields();
bool is_understood_field(const std::string& name);
bool is_harmless_field(
    const std::string& name);  // generation settings, provenance, dtype: no effect on the model
bool is_rope_field(const std::string& name);  // inside rope_scaling and rope_parameters
// There, too, but read by other types of RoPE only (yarn, longrope).
bool is_rope_field_of_other_types(const std::string& name);

}  // namespace tessera
