#include "formats/huggingface/config_reading.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

void read_qwen3_moe(const JsonNode& fields, ModelConfig& config) {
  MixtureOfExperts experts = read_mixture(fields, {.num_experts = 128, .num_experts_per_tok = 8}, config);
  experts.moe_intermediate_size = read_size(fields["moe_intermediate_size"], 768, 1 << 22);
  experts.norm_topk_prob = fields["norm_topk_prob"].boolean_or(false);
  read_dense_layers(fields, experts);
  config.experts = experts;
}

}  // namespace

FamilyInfo qwen3_moe_family() {
  return {.model_type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .layer_class = "Qwen3MoeDecoderLayer",
          .other_classes = {"Qwen3MoeForCausalLM", "Qwen3MoeModel", "Qwen3MoeAttention", "Qwen3MoeMLP",
                            "Qwen3MoeSparseMoeBlock", "Qwen3MoeExperts", "Qwen3MoeTopKRouter",
                            "Qwen3MoeRMSNorm", "Embedding", "Linear"},
          .num_key_value_heads = 4,
          .max_position_embeddings = 32768,
          .has_attention_bias = true,
          .has_qk_norm = true,
          .fields = {{"num_experts", "read", "-"},
                     {"num_local_experts", "read", "-"},
                     {"num_experts_per_tok", "read", "-"},
                     {"moe_intermediate_size", "read", "-"},
                     {"norm_topk_prob", "read", "-"},
                     {"decoder_sparse_step", "read", "-"},
                     {"mlp_only_layers", "read", "-"},
                     {"output_router_logits", "read", "-"},
                     {"router_aux_loss_coef", "read", "-"},
                     {"use_sliding_window", "only", "false"}},
          .read = read_qwen3_moe,
          .gguf_architecture = "qwen3moe"};
}

}  // namespace tessera
