// What llama.cpp computes for the architectures that we write, whatever a file says (llama.cpp, src/models).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/huggingface/model_config.h"

namespace tessera {

// The sliding windows that llama.cpp applies.
enum class GgufWindows {
  kNone,     // texts longer than the model's windows differ
  kPattern,  // in all layers but every GgufArchitecture::window_pattern-th
  kListed    // in those that the file lists
};

struct GgufArchitecture {
  std::string_view name;
  bool is_llama = false;  // converted as LlamaForCausalLM: rotates neighbouring elements, has vocab_size
  bool has_rope_divisors = false;  // rope_freqs.weight
  bool has_longrope = false;
  bool has_linear = true;
  bool has_yarn = false;
  bool reads_yarn_betas = false;  // others always have 32 and 1
  bool has_qkv_bias = false;
  bool has_o_bias = false;
  bool has_mlp_bias = false;
  bool ties_embeddings = false;   // always
  bool has_own_lm_head = false;   // always
  bool heads_fill_width = false;  // head_dim is hidden_size / num_attention_heads
  bool has_soft_caps = false;     // of scores and logits, always or never
  GgufWindows windows = GgufWindows::kNone;
  int64_t window_pattern = 0;
  int64_t largest_layers = 0;    // Gemma: the depth whose scores are scaled by hidden_size / heads
  int64_t rotation_pattern = 0;  // every such layer has no rotary embedding; 0: all have one
};

// By FamilyInfo::gguf_architecture. Error(kBadConfig), naming `origin`, for a family that has none.
const GgufArchitecture& gguf_architecture(const ModelConfig& config, const std::string& origin);

// Error(kBadConfig), naming `origin`, for what the architecture cannot represent.
void check_gguf_architecture(const ModelConfig& config, const std::string& origin);

// What llama.cpp computes differently in some texts: sentences for warnings.
std::vector<std::string> gguf_differences(const ModelConfig& config);

}  // namespace tessera
