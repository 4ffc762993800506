#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo t5_family() {
  return {.model_type = "t5",
          .architecture = "T5ForConditionalGeneration",
          .kind = FamilyKind::kEncoderDecoder,
          .layer_class = "T5Block",
          .other_classes = {"T5ForConditionalGeneration", "T5Stack", "T5LayerSelfAttention",
                            "T5LayerCrossAttention", "T5LayerFF", "T5Attention", "T5DenseActDense",
                            "T5DenseGatedActDense", "T5LayerNorm", "Embedding", "Linear"},
          .lora_modules = {},
          .head_dim = 64,
          .eos_token_id = 1};
}

}  // namespace tessera
