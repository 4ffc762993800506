#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo qwen2_family() {
  return {.model_type = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .layer_class = "Qwen2DecoderLayer",
          .other_classes = {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2Attention", "Qwen2MLP", "Qwen2RMSNorm",
                            "Embedding", "Linear"},
          .num_key_value_heads = 32,
          .max_position_embeddings = 32768,
          .window_layers = WindowLayers::kAfterFirst,
          .sliding_window = 4096,
          .has_qkv_bias = true,
          .refuses_unknown_fields = false,
          .gguf_architecture = "qwen2"};
}

}  // namespace tessera
