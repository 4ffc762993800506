#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo mistral_family() {
  return {.model_type = "mistral",
          .architecture = "MistralForCausalLM",
          .layer_class = "MistralDecoderLayer",
          .other_classes = {"MistralForCausalLM", "MistralModel", "MistralAttention", "MistralMLP",
                            "MistralRMSNorm", "Embedding", "Linear"},
          .text_of = {"mistral3"},
          .num_key_value_heads = 8,
          .max_position_embeddings = 131072,
          .window_layers = WindowLayers::kAll,
          .sliding_window = 4096,
          .bos_token_id = 1,
          .eos_token_id = 2,
          .refuses_unknown_fields = false,
          .gguf_architecture = "llama"};
}

}  // namespace tessera
