#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo olmo2_family() {
  return {.model_type = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .layer_class = "Olmo2DecoderLayer",
          .other_classes = {"Olmo2ForCausalLM", "Olmo2Model", "Olmo2Attention", "Olmo2MLP", "Olmo2RMSNorm",
                            "Embedding", "Linear"},
          .norm_eps = 1e-5,
          .eos_token_id = 50279,
          .pad_token_id = 1,
          .has_attention_bias = true,
          .has_qk_norm = true,
          .qk_norm_whole = true,
          .norm_placement = NormPlacement::kAfter,
          .gguf_architecture = "olmo2"};
}

}  // namespace tessera
