#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo llama_family() {
  return {.model_type = "llama",
          .architecture = "LlamaForCausalLM",
          .layer_class = "LlamaDecoderLayer",
          .other_classes = {"LlamaForCausalLM", "LlamaModel", "LlamaAttention", "LlamaMLP", "LlamaRMSNorm",
                            "Embedding", "Linear"},
          .bos_token_id = 1,
          .eos_token_id = 2,
          .has_attention_bias = true,
          .has_mlp_bias = true,
          .refuses_unknown_fields = false,
          .gguf_architecture = "llama"};
}

}  // namespace tessera
