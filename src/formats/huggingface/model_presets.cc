// Presets of model shapes.

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/model_config.h"

namespace tessera {
namespace {

// Published shapes: the config.json of meta-llama/Meta-Llama-3-8B, Llama-3.2-3B and Llama-3.2-1B.
ModelConfig llama3(int64_t hidden_size, int64_t intermediate_size, int64_t num_layers, int64_t num_heads) {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = hidden_size;
  config.intermediate_size = intermediate_size;
  config.num_hidden_layers = num_layers;
  config.num_attention_heads = num_heads;
  config.num_key_value_heads = 8;
  config.head_dim = hidden_size / num_heads;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000;
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  return config;
}

ModelConfig llama32(ModelConfig config) {
  config.max_position_embeddings = 131072;
  config.tie_word_embeddings = true;
  config.rope_scaling = {.type = RopeType::kLlama3,
                         .factor = 32,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_max_position_embeddings = 8192};
  return config;
}

// Sizes are multiples of 64 and the head size is 64, so that no AMX tile is partly empty.
ModelConfig small(int64_t hidden_size, int64_t intermediate_size, int64_t num_layers, int64_t num_kv_heads) {
  ModelConfig config;
  config.hidden_size = hidden_size;
  config.intermediate_size = intermediate_size;
  config.num_hidden_layers = num_layers;
  config.num_attention_heads = hidden_size / 64;
  config.num_key_value_heads = num_kv_heads;
  config.head_dim = 64;
  config.max_position_embeddings = 2048;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  return config;
}

// Published: the config.json of Qwen/Qwen3-30B-A3B.
ModelConfig qwen3_30b_a3b() {
  ModelConfig config;
  config.family = "qwen3_moe";
  config.vocab_size = 151936;
  config.hidden_size = 2048;
  config.intermediate_size = 6144;
  config.num_hidden_layers = 48;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.max_position_embeddings = 40960;
  config.rope_theta = 1e6;
  config.qk_norm = true;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151645};
  config.experts = MixtureOfExperts{.num_experts = 128,
                                    .num_experts_per_tok = 8,
                                    .moe_intermediate_size = 768,
                                    .norm_topk_prob = true,
                                    .layers = std::vector<bool>(48, true)};
  return config;
}

struct Preset {
  const char* name;
  ModelConfig (*make)();
};

constexpr Preset kPresets[] = {
    {"15m", [] { return small(384, 1024, 8, 2); }},    // 15.7 M parameters with 8,192 tokens
    {"60m", [] { return small(512, 1792, 12, 4); }},   // 58.9 M with 32,000
    {"160m", [] { return small(768, 2560, 18, 4); }},  // 159 M with 32,000
    {"llama3.2-1b", [] { return llama32(llama3(2048, 8192, 16, 32)); }},
    {"llama3.2-3b", [] { return llama32(llama3(3072, 8192, 28, 24)); }},
    {"llama3-8b", [] { return llama3(4096, 14336, 32, 32); }},
    {"qwen3-30b-a3b", qwen3_30b_a3b},
};

}  // namespace

ModelConfig preset_config(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    ModelConfig config = preset.make();
    config.sliding_window.assign(static_cast<size_t>(config.num_hidden_layers), 0);
    return config;
  }
  fail(ExitCode::kUsage, "unknown preset '{}', expected one of {}", printable(name),
       fmt::join(preset_names(), ", "));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace tessera
