#include "formats/gguf/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

bool is_llama(const ModelConfig& config) { return family_info(config.family).gguf_architecture == "llama"; }

void check_supported(const ModelConfig& config, const std::string& origin) {
  const std::string& model = family_info(config.family).architecture;
  if (family_info(config.family).gguf_architecture.empty())
    fail(ExitCode::kBadConfig, "{}: {} is not written as GGUF: use the Hugging Face folder", origin, model);
  if (config.rope_scaling.type == RopeType::kYarn || config.rope_scaling.type == RopeType::kLongRope)
    fail(ExitCode::kBadConfig,
         "{}: the rope types yarn and longrope are not written as GGUF: use the Hugging Face folder", origin);
  if (config.rope_scaling.type == RopeType::kLlama3 && !is_llama(config)) {
    fail(ExitCode::kBadConfig, "{}: llama.cpp has no Llama 3 rope scaling for {}: it cannot run this model",
         origin, model);
  }
  if (family_info(config.family).has_qk_norm && (config.qkv_bias || config.o_bias)) {
    fail(ExitCode::kBadConfig, "{}: llama.cpp has no attention biases for {}: it cannot run this model",
         origin, model);
  }
}

}  // namespace

std::vector<GgufField> gguf_model_fields(const ModelConfig& config, const std::string& origin) {
  check_supported(config, origin);
  const std::string name = family_info(config.family).gguf_architecture;
  std::vector<GgufField> fields = {{"general.architecture", GgufScalar(name)}};
  const auto add = [&](const char* key, GgufScalar value) {
    fields.push_back({fmt::format("{}.{}", name, key), std::move(value)});
  };
  const auto size = [](int64_t value) { return GgufScalar(static_cast<uint32_t>(value)); };
  const auto real = [](double value) { return GgufScalar(static_cast<float>(value)); };
  add("block_count", size(config.num_hidden_layers));
  add("context_length", size(config.max_position_embeddings));
  add("embedding_length", size(config.hidden_size));
  add("feed_forward_length", size(config.intermediate_size));
  add("attention.head_count", size(config.num_attention_heads));
  add("attention.head_count_kv", size(config.num_key_value_heads));
  add("attention.layer_norm_rms_epsilon", real(config.rms_norm_eps));
  add("attention.key_length", size(config.head_dim));
  add("attention.value_length", size(config.head_dim));
  add("rope.freq_base", real(config.rope_theta));
  if (config.rope_scaling.type == RopeType::kLinear) {
    add("rope.scaling.type", std::string("linear"));
    add("rope.scaling.factor", real(config.rope_scaling.factor));
  }
  if (is_llama(config)) {
    add("vocab_size", size(config.vocab_size));
    add("rope.dimension_count", size(config.head_dim));
  }
  return fields;
}

std::string gguf_tensor_name(const std::string& name) {
  // Everything between "model.layers.N." and ".weight" or ".bias", or all before these.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kNames = {{
      {"model.embed_tokens", "token_embd"},
      {"model.norm", "output_norm"},
      {"lm_head", "output"},
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
  }};
  constexpr std::string_view kLayers = "model.layers.";
  std::string_view module = name;
  std::string prefix;
  if (module.starts_with(kLayers)) {
    module.remove_prefix(kLayers.size());
    const size_t dot = module.find('.');
    prefix = fmt::format("blk.{}.", module.substr(0, dot));
    module.remove_prefix(dot + 1);
  }
  const size_t dot = module.rfind('.');
  const auto at =
      std::ranges::find(kNames, module.substr(0, dot), &std::pair<std::string_view, std::string_view>::first);
  TESSERA_CHECK(at != kNames.end(), "tensor '{}'", name);
  return fmt::format("{}{}{}", prefix, at->second, module.substr(dot));
}

int64_t num_reordered_heads(const ModelConfig& config, std::string_view name) {
  if (!is_llama(config)) return 0;
  if (name.find(".q_proj.") != name.npos) return config.num_attention_heads;
  return name.find(".k_proj.") != name.npos ? config.num_key_value_heads : 0;
}

std::vector<float> gguf_rope_divisors(const ModelConfig& config) {
  std::vector<float> divisors;
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.type != RopeType::kLlama3) return divisors;
  const auto positions = static_cast<double>(scaling.original_max_position_embeddings);
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const double frequency =
        std::pow(config.rope_theta, -static_cast<double>(i) / static_cast<double>(config.head_dim));
    const double turns = positions * frequency / (2 * std::numbers::pi);  // over the original context
    // 1 for high frequencies, `factor` for low ones, between them the mean of the frequencies.
    double divisor = 1;
    if (turns < scaling.low_freq_factor) {
      divisor = scaling.factor;
    } else if (turns <= scaling.high_freq_factor) {
      const double smooth =
          (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      divisor = 1 / ((1 - smooth) / scaling.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

std::string gguf_size_label(int64_t num_parameters) {
  constexpr std::array<std::pair<double, char>, 4> kUnits = {
      {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}}};
  const auto count = static_cast<double>(num_parameters);
  const auto unit = std::ranges::find_if(kUnits, [&](const auto& u) { return count > u.first; });
  const auto [size, letter] = unit == kUnits.end() ? kUnits.back() : *unit;
  // At least two digits.
  const double scaled = count / size;
  const std::string whole = fmt::format("{:.0f}", scaled);
  const int decimals = whole == "0" ? 2 : whole.size() < 2 ? 1 : 0;
  return fmt::format("{:.{}f}{}", scaled, decimals, letter);
}

}  // namespace tessera
