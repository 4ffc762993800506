// Differences between the model families, and which fields of config.json are understood, harmless or
// rejected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/huggingface/model_config.h"

namespace tessera {

// The layers that have a sliding window if layer_types does not say.
enum class WindowLayers {
  kNone,
  kAll,
  kAfterFirst
};  // kAfterFirst: with use_sliding_window, from max_window_layers on

// A decoder alone, an encoder and a decoder that attends to it, or an encoder alone.
enum class FamilyKind { kDecoder, kEncoderDecoder, kEncoder };

// The defaults of absent fields are those of transformers' configuration classes.
struct FamilyInfo {
  ModelFamily family;
  std::string model_type;
  std::string architecture;
  std::string gguf_architecture;
  int64_t num_key_value_heads;  // 0 = as many as query heads
  int64_t head_dim;             // 0 = hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  WindowLayers window_layers;
  int64_t sliding_window;  // 0 = none
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  bool has_attention_bias;  // attention_bias says whether q, k, v and o have one
  bool has_qkv_bias;        // q, k and v always have one
  bool has_mlp_bias;        // mlp_bias says whether
  bool has_qk_norm;
  FamilyKind kind = FamilyKind::kDecoder;
};

std::span<const FamilyInfo> model_families();
const FamilyInfo& family_info(ModelFamily family);

// A line of config_fields.tsv, t5_fields.tsv or encoder_fields.tsv.
struct ConfigField {
  std::string_view name;
  std::string_view use;    // "read", "ignored", "only", "other"
  std::string_view value;  // JSON
};

const std::vector<ConfigField>& config_fields(FamilyKind kind = FamilyKind::kDecoder);
// Null for a name that no line has.
const ConfigField* find_config_field(std::string_view name, FamilyKind kind = FamilyKind::kDecoder);

}  // namespace tessera
