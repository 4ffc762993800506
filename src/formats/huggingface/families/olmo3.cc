#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo olmo3_family() {
  return {.model_type = "olmo3",
          .architecture = "Olmo3ForCausalLM",
          .layer_class = "Olmo3DecoderLayer",
          .other_classes = {"Olmo3ForCausalLM", "Olmo3Model", "Olmo3Attention", "Olmo3MLP", "Olmo3RMSNorm",
                            "Embedding", "Linear"},
          .norm_eps = 1e-5,
          .rope_theta = 500000,
          .local_rope_theta = 500000,
          .window_layers = WindowLayers::kPattern,
          .sliding_window = 4096,
          .window_pattern = 4,
          .eos_token_id = 50279,
          .pad_token_id = 1,
          .has_attention_bias = true,
          .has_qk_norm = true,
          .qk_norm_whole = true,
          .norm_placement = NormPlacement::kAfter,
          .gguf_architecture = "olmo2"};
}

}  // namespace tessera
