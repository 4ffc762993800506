#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo qwen3_family() {
  return {.model_type = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .layer_class = "Qwen3DecoderLayer",
          .other_classes = {"Qwen3ForCausalLM", "Qwen3Model", "Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm",
                            "Embedding", "Linear"},
          .num_key_value_heads = 32,
          .head_dim = 128,
          .max_position_embeddings = 32768,
          .window_layers = WindowLayers::kAfterFirst,
          .sliding_window = 4096,
          .has_attention_bias = true,
          .has_qk_norm = true,
          .refuses_unknown_fields = false,
          .gguf_architecture = "qwen3"};
}

}  // namespace tessera
