#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

void read_helium(const JsonNode& /*fields*/, ModelConfig& config) {
  config.rope_interleaved = true;
  config.o_bias = false;  // attention_bias is that of q, k and v alone
}

}  // namespace

FamilyInfo helium_family() {
  return {.model_type = "helium",
          .architecture = "HeliumForCausalLM",
          .layer_class = "HeliumDecoderLayer",
          .other_classes = {"HeliumForCausalLM", "HeliumModel", "HeliumAttention", "HeliumMLP",
                            "HeliumRMSNorm", "Embedding", "Linear"},
          .num_key_value_heads = 20,
          .head_dim = 128,
          .max_position_embeddings = 4096,
          .norm_eps = 1e-8,
          .rope_theta = 100000,
          .bos_token_id = 1,
          .eos_token_id = 2,
          .pad_token_id = 3,
          .has_attention_bias = true,
          .has_mlp_bias = true,
          .read = read_helium,
          .gguf_architecture = "llama"};
}

}  // namespace tessera
