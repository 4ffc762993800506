#include "formats/gguf/gguf_architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .is_llama = true,
     .has_rope_divisors = true,
     .has_longrope = true,
     .has_yarn = true,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_mlp_bias = true},
    {.name = "mistral3",
     .is_llama = true,
     .has_rope_divisors = true,
     .has_longrope = true,
     .has_yarn = true,
     .reads_yarn_betas = true,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_mlp_bias = true},
    {.name = "granite",
     .is_llama = true,
     .has_rope_divisors = true,
     .has_longrope = true,
     .has_yarn = true,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_mlp_bias = true},
    {.name = "smollm3", .is_llama = true, .has_yarn = true, .rotation_pattern = 4},
    {.name = "qwen2", .has_yarn = true, .has_qkv_bias = true},
    {.name = "qwen3", .has_yarn = true},
    {.name = "qwen3moe", .has_yarn = true},
    {.name = "gpt-oss",
     .has_yarn = true,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_own_lm_head = true,
     .windows = GgufWindows::kPattern,
     .window_pattern = 2},
    {.name = "olmo2",
     .has_yarn = true,
     .has_own_lm_head = true,
     .heads_fill_width = true,
     .windows = GgufWindows::kListed},
    {.name = "phi3", .has_longrope = true, .heads_fill_width = true},
    {.name = "gemma2",
     .has_linear = false,
     .ties_embeddings = true,
     .has_soft_caps = true,
     .windows = GgufWindows::kPattern,
     .window_pattern = 2,
     .largest_layers = 46},
    {.name = "gemma3", .windows = GgufWindows::kPattern, .window_pattern = 6, .largest_layers = 62},
    {.name = "cohere2",
     .has_linear = false,
     .ties_embeddings = true,
     .windows = GgufWindows::kPattern,
     .window_pattern = 4},
};

// What one check needs; refuse() ends the export.
struct Checker {
  const ModelConfig& config;
  const GgufArchitecture& form;
  const std::string& origin;

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::kBadConfig, "{}: llama.cpp's {} {}: it cannot run this model", origin, form.name, what);
  }
  void check_tensors() const;
  void check_layers() const;
  void check_rope() const;
  void check_experts() const;
};

void Checker::check_tensors() const {
  if ((config.qkv_bias && !form.has_qkv_bias) || (config.o_bias && !form.has_o_bias))
    refuse("has no attention biases" + std::string(form.has_qkv_bias ? " of o_proj" : ""));
  if (form.name == "gpt-oss" && !config.o_bias) refuse("always has attention biases");
  if (config.mlp_bias && !form.has_mlp_bias) refuse("has no biases in the MLP");
  if (form.ties_embeddings && !config.tie_word_embeddings) refuse("has no lm_head of its own");
  if (form.has_own_lm_head && config.tie_word_embeddings)
    refuse("has an lm_head of its own (tie_word_embeddings)");
  if (form.heads_fill_width && config.head_dim * config.num_attention_heads != config.hidden_size)
    refuse("has head_dim = hidden_size / num_attention_heads");
  if ((config.attention_softcap != 0) != form.has_soft_caps ||
      (config.logits_softcap != 0) != form.has_soft_caps)
    refuse(form.has_soft_caps ? "always has soft caps of scores and logits" : "has no soft caps");
}

void Checker::check_layers() const {
  if (form.largest_layers != 0 && config.attention_scale != 0) {
    const int64_t scaled_by = config.num_hidden_layers == form.largest_layers
                                  ? config.hidden_size / config.num_attention_heads
                                  : config.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(scaled_by));
    if (std::abs(config.attention_scale / scale - 1) > 1e-6)
      refuse(fmt::format("has query_pre_attn_scalar {} in a model of {} layers", scaled_by,
                         config.num_hidden_layers));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    const bool has_window = config.sliding_window[at] != 0;
    if (form.windows == GgufWindows::kPattern && has_window == ((layer + 1) % form.window_pattern == 0))
      refuse(fmt::format("has a sliding window in all layers but every {}th", form.window_pattern));
    if (form.rotation_pattern == 0) continue;
    const bool rotates = config.layer_rope.empty() || config.layer_rope[at] != LayerRope::kNone;
    if (rotates == ((layer + 1) % form.rotation_pattern == 0))
      refuse(fmt::format("has a rotary embedding in all layers but every {}th", form.rotation_pattern));
  }
}

void Checker::check_rope() const {
  const RopeScaling& scaling = config.rope_scaling;
  const bool is_known = scaling.type == RopeType::kDefault ||
                        (scaling.type == RopeType::kLinear && form.has_linear) ||
                        (scaling.type == RopeType::kLlama3 && form.has_rope_divisors) ||
                        (scaling.type == RopeType::kYarn && form.has_yarn) ||
                        (scaling.type == RopeType::kLongRope && form.has_longrope);
  if (!is_known) {
    constexpr std::string_view kNames[] = {"default", "linear", "llama3", "yarn", "longrope"};
    refuse(fmt::format("has no rope scaling '{}'", kNames[static_cast<size_t>(scaling.type)]));
  }
  if (scaling.type == RopeType::kYarn && !form.reads_yarn_betas &&
      (scaling.beta_fast != 32 || scaling.beta_slow != 1))
    refuse("always has yarn's beta_fast 32 and beta_slow 1");
  // For GPT-OSS, whose released files have it, gguf_differences() warns instead.
  if (scaling.type == RopeType::kYarn && !scaling.truncate && form.name != "gpt-oss")
    refuse("always rounds the bounds between yarn's frequencies (truncate)");
  constexpr double kGemmaTheta = 1e4;
  if (form.name == "gemma3" && config.local_rope != Rope{kGemmaTheta})
    refuse("has rope_theta 10000 without scaling in layers with a window");
  if (form.name == "olmo2" && has_local_rope(config) && config.local_rope != Rope{config.rope_theta})
    refuse("has the same rope_theta in all layers, and no scaling in those with a window");
}

void Checker::check_experts() const {
  if (!config.experts) return;
  const MixtureOfExperts& experts = *config.experts;
  if (std::ranges::find(experts.layers, false) != experts.layers.end())
    refuse("has experts in all layers (mlp_only_layers, decoder_sparse_step)");
  if (!experts.norm_topk_prob) refuse("always normalizes the weights of a token's experts (norm_topk_prob)");
  if (experts.fused && *experts.fused != ClampedSwiglu{.alpha = 1.702f, .limit = 7.0f})
    refuse("always has swiglu_alpha 1.702 and swiglu_limit 7");
}

}  // namespace

const GgufArchitecture& gguf_architecture(const ModelConfig& config, const std::string& origin) {
  const FamilyInfo& family = family_info(config.family);
  const auto* at = std::ranges::find(kArchitectures, family.gguf_architecture, &GgufArchitecture::name);
  if (at == std::end(kArchitectures))
    fail(ExitCode::kBadConfig, "{}: {} is not written as GGUF: use the Hugging Face folder", origin,
         family.architecture);
  return *at;
}

void check_gguf_architecture(const ModelConfig& config, const std::string& origin) {
  const Checker checker = {config, gguf_architecture(config, origin), origin};
  checker.check_tensors();
  checker.check_layers();
  checker.check_rope();
  checker.check_experts();
}

std::vector<std::string> gguf_differences(const ModelConfig& config) {
  std::vector<std::string> differences;
  const int64_t window = config.sliding_window.empty() ? 0 : std::ranges::max(config.sliding_window);
  if (window > 0 && gguf_architecture(config, "").windows == GgufWindows::kNone)
    differences.push_back(fmt::format(
        "llama.cpp has no sliding window for this model: texts of more than {} tokens will differ", window));
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.type == RopeType::kYarn && !scaling.truncate)
    differences.push_back(
        "llama.cpp rounds the bounds between yarn's frequencies, this model does not (truncate): frequencies "
        "between them, and so logits, differ");
  if (scaling.type == RopeType::kLongRope)
    differences.push_back(
        fmt::format("llama.cpp takes longrope's factors for long texts whenever its context (-c) exceeds {} "
                    "tokens, however long a text is",
                    scaling.original_max_position_embeddings));
  return differences;
}

}  // namespace tessera
