#include <cmath>

#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Norms before and after attention and MLP, scores and logits with a soft cap, a window in every second
// layer.
void read_gemma2(const JsonNode& fields, ModelConfig& config) {
  config.norm = NormKind::kRmsPlusOne;
  config.norm_placement = NormPlacement::kBoth;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_scale = true;
  config.attention_scale = 1 / std::sqrt(read_positive(fields["query_pre_attn_scalar"], 256, 1e9));
  config.attention_softcap = read_soft_cap(fields, "attn_logit_softcapping", 50);
  config.logits_softcap = read_soft_cap(fields, "final_logit_softcapping", 30);
}

}  // namespace

FamilyInfo gemma2_family() {
  return {.model_type = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .layer_class = "Gemma2DecoderLayer",
          .other_classes = {"Gemma2ForCausalLM", "Gemma2Model", "Gemma2Attention", "Gemma2MLP",
                            "Gemma2RMSNorm", "Gemma2TextScaledWordEmbedding", "Linear"},
          .num_key_value_heads = 4,
          .head_dim = 256,
          .max_position_embeddings = 8192,
          .window_layers = WindowLayers::kPattern,
          .sliding_window = 4096,
          .window_pattern = 2,
          .bos_token_id = 2,
          .eos_token_id = 1,
          .pad_token_id = 0,
          .tie_word_embeddings = true,
          .has_attention_bias = true,
          .activation_field = "hidden_activation",
          .activations = {{"gelu_pytorch_tanh", Activation::kGatedGeluTanh}},
          .fields = {{"hidden_activation", "read", "-"},
                     {"hidden_act", "ignored", "-"},
                     {"query_pre_attn_scalar", "read", "-"},
                     {"attn_logit_softcapping", "read", "-"},
                     {"final_logit_softcapping", "read", "-"},
                     {"use_bidirectional_attention", "only", "false"},
                     {"sliding_window_size", "ignored", "-"},
                     {"cache_implementation", "ignored", "-"}},
          .read = read_gemma2,
          .names = {.mlp_norm = "pre_feedforward_layernorm"},
          .gguf_architecture = "gemma2"};
}

}  // namespace tessera
