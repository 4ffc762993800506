#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// MXFP4 is a form of the files alone: the weights are read as numbers, and written as such.
void check_quantization(const JsonNode& quantization) {
  if (quantization.is_null()) return;
  for (const auto& [name, value] : quantization.object().items()) {
    const bool is_known = name == "quant_method" || name == "modules_to_not_convert" || name == "dequantize";
    if (is_known && (name != "quant_method" || value == "mxfp4")) continue;
    fail(ExitCode::kBadConfig, "{}: field 'quantization_config.{}': {} is not supported{}",
         quantization.origin(), printable(name), printable(value.dump()),
         name == "quant_method" ? ", expected mxfp4" : "");
  }
  if (quantization["quant_method"].is_null())
    fail(ExitCode::kBadConfig, "{}: field 'quantization_config': {} is not supported, expected mxfp4",
         quantization.origin(), printable(quantization.json().dump()));
}

void read_gpt_oss(const JsonNode& fields, ModelConfig& config) {
  check_quantization(fields["quantization_config"]);
  config.o_bias = config.qkv_bias = fields["attention_bias"].boolean_or(true);
  config.attention_sinks = true;
  MixtureOfExperts experts = read_mixture(fields, {.num_experts = 128, .num_experts_per_tok = 4}, config);
  experts.fused =
      ClampedSwiglu{.alpha = static_cast<float>(read_positive(fields["swiglu_alpha"], 1.702, 1e6)),
                    .limit = static_cast<float>(read_positive(fields["swiglu_limit"], 7, 1e6))};
  config.experts = experts;
}

}  // namespace

FamilyInfo gpt_oss_family() {
  return {.model_type = "gpt_oss",
          .architecture = "GptOssForCausalLM",
          .layer_class = "GptOssDecoderLayer",
          .other_classes = {"GptOssForCausalLM", "GptOssModel", "GptOssAttention", "GptOssMLP",
                            "GptOssExperts", "GptOssTopKRouter", "GptOssRMSNorm", "Embedding", "Linear"},
          .lora_modules = {"q_proj", "k_proj", "v_proj", "o_proj"},
          .vocab_size = 201088,
          .num_attention_heads = 64,
          .num_key_value_heads = 8,
          .head_dim = 64,
          .max_position_embeddings = 131072,
          .norm_eps = 1e-5,
          .rope_theta = 150000,
          .absent_rope = R"({"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
                             "truncate": false, "original_max_position_embeddings": 4096})",
          .window_layers = WindowLayers::kPattern,
          .sliding_window = 128,
          .window_pattern = 2,
          .has_attention_bias = true,
          .fields = {{"num_experts", "read", "-"},
                     {"num_local_experts", "read", "-"},
                     {"num_experts_per_tok", "read", "-"},
                     {"swiglu_alpha", "read", "-"},
                     {"swiglu_limit", "read", "-"},
                     {"output_router_logits", "read", "-"},
                     {"router_aux_loss_coef", "read", "-"},
                     {"quantization_config", "read", "-"},
                     // The released files repeat num_experts_per_tok and the rotary embedding in these.
                     {"experts_per_token", "ignored", "-"},
                     {"initial_context_length", "ignored", "-"}},
          .read = read_gpt_oss,
          .names = {.router = "mlp.router"},
          .gguf_architecture = "gpt-oss"};
}

}  // namespace tessera
