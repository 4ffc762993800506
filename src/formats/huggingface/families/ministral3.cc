#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Queries grow with their position.
void read_ministral3(const JsonNode& fields, ModelConfig& config) {
  const JsonNode rope = rope_fields(fields);
  config.query_scale_beta = rope["llama_4_scaling_beta"].number_or(0);
  if (!(config.query_scale_beta >= 0 && config.query_scale_beta <= 100))
    rope["llama_4_scaling_beta"].expected("a number from 0 to 100");
  config.query_scale_positions = config.rope_scaling.original_max_position_embeddings;
}

}  // namespace

FamilyInfo ministral3_family() {
  return {
      .model_type = "ministral3",
      .architecture = "Ministral3ForCausalLM",
      .layer_class = "Ministral3DecoderLayer",
      .other_classes = {"Ministral3ForCausalLM", "Ministral3Model", "Ministral3Attention", "Ministral3MLP",
                        "Ministral3RMSNorm", "Embedding", "Linear"},
      .text_of = {"mistral3"},
      .num_key_value_heads = 8,
      .head_dim = 128,
      .max_position_embeddings = 262144,
      .norm_eps = 1e-5,
      .rope_theta = 1000000,
      .window_layers = WindowLayers::kAll,
      .bos_token_id = 1,
      .eos_token_id = 2,
      .pad_token_id = 11,
      .fields = {{"rope.llama_4_scaling_beta", "read", ""}, {"rope.max_position_embeddings", "ignored", ""}},
      .read = read_ministral3,
      .gguf_architecture = "mistral3"};
}

}  // namespace tessera
