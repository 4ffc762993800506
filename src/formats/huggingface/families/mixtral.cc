#include "formats/huggingface/config_reading.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

void read_mixtral(const JsonNode& fields, ModelConfig& config) {
  config.experts = read_mixture(fields, {.num_experts = 8, .num_experts_per_tok = 2}, config);
}

}  // namespace

FamilyInfo mixtral_family() {
  return {.model_type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .layer_class = "MixtralDecoderLayer",
          .other_classes = {"MixtralForCausalLM", "MixtralModel", "MixtralAttention", "MixtralSparseMoeBlock",
                            "MixtralExperts", "MixtralTopKRouter", "MixtralRMSNorm", "Embedding", "Linear"},
          .lora_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"},
          .num_key_value_heads = 8,
          .max_position_embeddings = 131072,
          .norm_eps = 1e-5,
          .rope_theta = 1e6,
          .window_layers = WindowLayers::kAll,
          .bos_token_id = 1,
          .eos_token_id = 2,
          .fields = {{"num_experts", "read", "-"},
                     {"num_local_experts", "read", "-"},
                     {"num_experts_per_tok", "read", "-"},
                     {"output_router_logits", "read", "-"},
                     {"router_aux_loss_coef", "read", "-"},
                     {"router_jitter_noise", "only", "0"}},
          .read = read_mixtral,
          .names = {.router = "block_sparse_moe.gate",
                    .experts = "block_sparse_moe.experts",
                    .expert_gate = "w1",
                    .expert_up = "w3",
                    .expert_down = "w2"},
          .gguf_architecture = "llama"};
}

}  // namespace tessera
