#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Layers without a rotary embedding: a list of 1 and 0, or every no_rope_layer_interval-th.
void read_smollm3(const JsonNode& fields, ModelConfig& config) {
  const JsonNode list = fields["no_rope_layers"];
  const int64_t interval = read_size(fields["no_rope_layer_interval"], 4, 10'000);
  if (!list.is_null() && std::ssize(list.list()) < config.num_hidden_layers)
    list.expected("a number for each layer: 0 for one without a rotary embedding");
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool rotates =
        list.is_null() ? (layer + 1) % interval != 0 : list[static_cast<size_t>(layer)].integer(0, 1) == 1;
    config.layer_rope.push_back(rotates ? LayerRope::kGlobal : LayerRope::kNone);
    if (!fields["layer_types"].is_null() || config.sliding_window.empty()) continue;
    if (rotates) config.sliding_window[static_cast<size_t>(layer)] = 0;
  }
}

}  // namespace

FamilyInfo smollm3_family() {
  return {.model_type = "smollm3",
          .architecture = "SmolLM3ForCausalLM",
          .layer_class = "SmolLM3DecoderLayer",
          .other_classes = {"SmolLM3ForCausalLM", "SmolLM3Model", "SmolLM3Attention", "SmolLM3MLP",
                            "SmolLM3RMSNorm", "Embedding", "Linear"},
          .num_key_value_heads = 4,
          .max_position_embeddings = 32768,
          .rope_theta = 2000000,
          .window_layers = WindowLayers::kIfUsed,
          .bos_token_id = 128000,
          .eos_token_id = 128001,
          .pad_token_id = 128004,
          .tie_word_embeddings = true,
          .has_attention_bias = true,
          .has_mlp_bias = true,
          .fields = {{"no_rope_layers", "read", ""}, {"no_rope_layer_interval", "read", ""}},
          .read = read_smollm3,
          .gguf_architecture = "smollm3"};
}

}  // namespace tessera
