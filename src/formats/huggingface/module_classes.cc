#include "formats/huggingface/module_classes.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

const ModuleClasses& module_classes(ModelFamily family) {
  using enum ModelFamily;
  // models/FAMILY/modeling_FAMILY.py of Transformers 5.24. Where _no_split_modules also has the
  // embeddings, these are among the others.
  static const std::vector<ModuleClasses> kClasses = {
      {kLlama,
       "LlamaDecoderLayer",
       {"LlamaForCausalLM", "LlamaModel", "LlamaAttention", "LlamaMLP", "LlamaRMSNorm", "Embedding",
        "Linear"}},
      {kMistral,
       "MistralDecoderLayer",
       {"MistralForCausalLM", "MistralModel", "MistralAttention", "MistralMLP", "MistralRMSNorm", "Embedding",
        "Linear"}},
      {kQwen2,
       "Qwen2DecoderLayer",
       {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2Attention", "Qwen2MLP", "Qwen2RMSNorm", "Embedding",
        "Linear"}},
      {kQwen3,
       "Qwen3DecoderLayer",
       {"Qwen3ForCausalLM", "Qwen3Model", "Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm", "Embedding",
        "Linear"}},
      {kT5,
       "T5Block",
       {"T5ForConditionalGeneration", "T5Stack", "T5LayerSelfAttention", "T5LayerCrossAttention", "T5LayerFF",
        "T5Attention", "T5DenseActDense", "T5DenseGatedActDense", "T5LayerNorm", "Embedding", "Linear"}},
      {kBert,
       "BertLayer",
       {"BertForMaskedLM", "BertModel", "BertEmbeddings", "BertEncoder", "BertAttention", "BertSelfAttention",
        "BertSelfOutput", "BertIntermediate", "BertOutput", "BertOnlyMLMHead", "BertLMPredictionHead",
        "BertPredictionHeadTransform", "LayerNorm", "Embedding", "Linear"}},
      {kXlmRoberta,
       "XLMRobertaLayer",
       {"XLMRobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaEmbeddings", "XLMRobertaEncoder",
        "XLMRobertaAttention", "XLMRobertaSelfAttention", "XLMRobertaSelfOutput", "XLMRobertaIntermediate",
        "XLMRobertaOutput", "XLMRobertaLMHead", "LayerNorm", "Embedding", "Linear"}},
      {kModernBert,
       "ModernBertEncoderLayer",
       {"ModernBertForMaskedLM", "ModernBertModel", "ModernBertEmbeddings", "ModernBertAttention",
        "ModernBertMLP", "ModernBertPredictionHead", "LayerNorm", "Embedding", "Linear"}},
  };
  const auto found = std::ranges::find(kClasses, family, &ModuleClasses::family);
  TESSERA_CHECK(found != kClasses.end(), "family {}", static_cast<int>(family));
  return *found;
}

}  // namespace tessera
