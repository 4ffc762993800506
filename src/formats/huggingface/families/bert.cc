#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo bert_family() {
  return {.model_type = "bert",
          .architecture = "BertForMaskedLM",
          .kind = FamilyKind::kEncoder,
          .layer_class = "BertLayer",
          .other_classes = {"BertForMaskedLM", "BertModel", "BertEmbeddings", "BertEncoder", "BertAttention",
                            "BertSelfAttention", "BertSelfOutput", "BertIntermediate", "BertOutput",
                            "BertOnlyMLMHead", "BertLMPredictionHead", "BertPredictionHeadTransform",
                            "LayerNorm", "Embedding", "Linear"},
          .lora_modules = {"query", "key", "value", "dense"}};
}

}  // namespace tessera
