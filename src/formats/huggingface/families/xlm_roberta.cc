#include "formats/huggingface/model_families.h"

namespace tessera {

FamilyInfo xlm_roberta_family() {
  return {.model_type = "xlm-roberta",
          .architecture = "XLMRobertaForMaskedLM",
          .kind = FamilyKind::kEncoder,
          .layer_class = "XLMRobertaLayer",
          .other_classes = {"XLMRobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaEmbeddings",
                            "XLMRobertaEncoder", "XLMRobertaAttention", "XLMRobertaSelfAttention",
                            "XLMRobertaSelfOutput", "XLMRobertaIntermediate", "XLMRobertaOutput",
                            "XLMRobertaLMHead", "LayerNorm", "Embedding", "Linear"},
          .lora_modules = {"query", "key", "value", "dense"},
          .bos_token_id = 0,
          .eos_token_id = 2};
}

}  // namespace tessera
