#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo modernbert_family() {
  return {.model_type = "modernbert",
          .architecture = "ModernBertForMaskedLM",
          .kind = FamilyKind::kEncoder,
          .layer_class = "ModernBertEncoderLayer",
          .other_classes = {"ModernBertForMaskedLM", "ModernBertModel", "ModernBertEmbeddings",
                            "ModernBertAttention", "ModernBertMLP", "ModernBertPredictionHead", "LayerNorm",
                            "Embedding", "Linear"},
          .lora_modules = {"Wqkv", "Wo", "Wi"},
          .bos_token_id = 50281,
          .eos_token_id = 50282};
}

}  // namespace tessera
