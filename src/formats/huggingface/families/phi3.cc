#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

// Transformers reads embd_pdrop without applying it.
void read_phi3(const JsonNode& fields, ModelConfig& config) {
  config.dropout.attention_output = config.dropout.mlp_output = read_dropout(fields["resid_pdrop"], 0);
}

}  // namespace

// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini.
FamilyInfo phi3_family() {
  return {.model_type = "phi3",
          .architecture = "Phi3ForCausalLM",
          .layer_class = "Phi3DecoderLayer",
          .other_classes = {"Phi3ForCausalLM", "Phi3Model", "Phi3Attention", "Phi3MLP", "Phi3RMSNorm",
                            "Embedding", "Linear"},
          .lora_modules = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"},
          .max_position_embeddings = 4096,
          .norm_eps = 1e-5,
          .rotates_partly = true,
          .rope_aliases = "su yarn",
          .original_positions = 4096,
          .window_layers = WindowLayers::kAll,
          .bos_token_id = 1,
          .eos_token_id = 32000,
          .pad_token_id = 32000,
          .fields = {{"partial_rotary_factor", "read", ""}, {"resid_pdrop", "read", "-"}},
          .read = read_phi3,
          .names = {.qkv = {"self_attn.qkv_proj"}, .gate_up = {"mlp.gate_up_proj"}},
          .gguf_architecture = "phi3"};
}

}  // namespace tessera
