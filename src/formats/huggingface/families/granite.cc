#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

void read_granite(const JsonNode& fields, ModelConfig& config) {
  config.embedding_scale = read_factor(fields["embedding_multiplier"], 1);
  config.residual_scale = read_factor(fields["residual_multiplier"], 1);
  config.attention_scale = read_factor(fields["attention_multiplier"], 1);
  config.logits_scale = 1 / read_factor(fields["logits_scaling"], 1);
}

}  // namespace

FamilyInfo granite_family() {
  return {.model_type = "granite",
          .architecture = "GraniteForCausalLM",
          .layer_class = "GraniteDecoderLayer",
          .other_classes = {"GraniteForCausalLM", "GraniteModel", "GraniteAttention", "GraniteMLP",
                            "GraniteRMSNorm", "Embedding", "Linear"},
          .bos_token_id = 1,
          .eos_token_id = 2,
          .has_attention_bias = true,
          .has_mlp_bias = true,
          .fields = {{"embedding_multiplier", "read", ""},
                     {"residual_multiplier", "read", ""},
                     {"attention_multiplier", "read", ""},
                     {"logits_scaling", "read", ""}},
          .read = read_granite,
          .gguf_architecture = "granite"};
}

}  // namespace tessera
