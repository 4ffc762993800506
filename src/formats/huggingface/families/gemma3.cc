#include <cmath>

#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Gemma 2's block with a norm of queries and keys; layers with a window have a rotary embedding of their own.
void read_gemma3(const JsonNode& fields, ModelConfig& config) {
  config.norm = NormKind::kRmsPlusOne;
  config.norm_placement = NormPlacement::kBoth;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_scale = true;
  config.attention_scale = 1 / std::sqrt(read_positive(fields["query_pre_attn_scalar"], 256, 1e9));
  config.attention_softcap = read_soft_cap(fields, "attn_logit_softcapping", 0);
  config.logits_softcap = read_soft_cap(fields, "final_logit_softcapping", 0);
}

}  // namespace

FamilyInfo gemma3_family() {
  return {.model_type = "gemma3_text",
          .architecture = "Gemma3ForCausalLM",
          .layer_class = "Gemma3DecoderLayer",
          .other_classes = {"Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3Attention", "Gemma3MLP",
                            "Gemma3RMSNorm", "Gemma3TextScaledWordEmbedding", "Linear"},
          .text_of = {"gemma3"},
          .vocab_size = 262208,
          .num_attention_heads = 8,
          .num_key_value_heads = 4,
          .head_dim = 256,
          .max_position_embeddings = 131072,
          .rope_theta = 1e6,
          .local_rope_theta = 1e4,
          .local_theta_field = "rope_local_base_freq",
          .window_layers = WindowLayers::kPattern,
          .sliding_window = 4096,
          .window_pattern = 6,
          .bos_token_id = 2,
          .eos_token_id = 1,
          .pad_token_id = 0,
          .tie_word_embeddings = true,
          .has_attention_bias = true,
          .has_qk_norm = true,
          .activation_field = "hidden_activation",
          .activations = {{"gelu_pytorch_tanh", Activation::kGatedGeluTanh}},
          .fields = {{"hidden_activation", "read", "-"},
                     {"hidden_act", "ignored", "-"},
                     {"query_pre_attn_scalar", "read", "-"},
                     {"attn_logit_softcapping", "read", "-"},
                     {"final_logit_softcapping", "read", "-"},
                     {"rope_local_base_freq", "read", "-"},
                     {"sliding_window_pattern", "read", "-"},
                     {"_sliding_window_pattern", "read", "-"},
                     {"use_bidirectional_attention", "only", "false"},
                     {"cache_implementation", "ignored", "-"}},
          .read = read_gemma3,
          .names = {.mlp_norm = "pre_feedforward_layernorm"},
          .gguf_architecture = "gemma3"};
}

}  // namespace tessera
