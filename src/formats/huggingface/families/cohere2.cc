#include "base/error.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Attention and MLP read the same LayerNorm; only layers with a window have a rotary embedding.
void read_cohere2(const JsonNode& fields, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.parallel_blocks = true;
  config.rope_interleaved = true;
  config.logits_scale = read_positive(fields["logit_scale"], 0.0625, 1e6);
  for (const int64_t window : config.sliding_window)
    config.layer_rope.push_back(window == 0 ? LayerRope::kNone : LayerRope::kGlobal);
  // Transformers ignores the field.
  if (config.head_dim * config.num_attention_heads != config.hidden_size)
    fail(ExitCode::kBadConfig,
         "{}: field 'head_dim': {} is not supported, expected hidden_size / "
         "num_attention_heads = {}",
         fields.origin(), config.head_dim, config.hidden_size / config.num_attention_heads);
}

}  // namespace

FamilyInfo cohere2_family() {
  return {.model_type = "cohere2",
          .architecture = "Cohere2ForCausalLM",
          .layer_class = "Cohere2DecoderLayer",
          .other_classes = {"Cohere2ForCausalLM", "Cohere2Model", "Cohere2Attention", "Cohere2MLP",
                            "Cohere2LayerNorm", "Embedding", "Linear"},
          .max_position_embeddings = 8192,
          .norm_eps = 1e-5,
          .window_layers = WindowLayers::kPattern,
          .sliding_window = 4096,
          .window_pattern = 4,
          .bos_token_id = 5,
          .eos_token_id = 255001,
          .pad_token_id = 0,
          .tie_word_embeddings = true,
          .has_attention_bias = true,
          .norm_eps_field = "layer_norm_eps",
          .fields = {{"layer_norm_eps", "read", "-"},
                     {"logit_scale", "read", "-"},
                     {"sliding_window_pattern", "read", "-"},
                     {"_sliding_window_pattern", "read", "-"},
                     {"rms_norm_eps", "ignored", "-"},
                     // What Command R7B's file says of its architecture; Transformers reads none of them.
                     {"order_of_interleaved_layers", "only", "\"local_attn_first\""},
                     {"position_embedding_type", "only", "\"rope_gptj\""},
                     {"rotary_pct", "only", "1.0"},
                     {"use_embedding_sharing", "only", "true"},
                     {"use_gated_activation", "only", "true"},
                     {"use_parallel_block", "only", "true"},
                     {"use_qk_norm", "only", "false"},
                     {"use_parallel_embedding", "ignored", "-"},
                     {"layer_switch", "ignored", "-"},
                     {"cache_implementation", "ignored", "-"}},
          .read = read_cohere2,
          .gguf_architecture = "cohere2"};
}

}  // namespace tessera
