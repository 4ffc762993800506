#include "formats/gguf/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "formats/gguf/gguf_architecture.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

using Fields = std::vector<GgufField>;

GgufScalar size_value(int64_t value) { return static_cast<uint32_t>(value); }
GgufScalar real_value(double value) { return static_cast<float>(value); }

// The magnitude of yarn that llama.cpp computes from `factor` alone, or with yarn_log_multiplier.
double yarn_magnitude(const RopeScaling& scaling, bool has_log_multiplier) {
  const auto magnitude = [&](double weight) {
    return scaling.factor <= 1 ? 1 : 0.1 * weight * std::log(scaling.factor) + 1;
  };
  return has_log_multiplier ? magnitude(1) / magnitude(scaling.mscale_all_dim) : magnitude(1);
}

// What follows "ARCHITECTURE.rope.".
void add_rope_fields(const ModelConfig& config, const GgufArchitecture& form, Fields& fields) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto add = [&](const char* key, GgufScalar value) {
    fields.push_back({fmt::format("{}.rope.{}", form.name, key), std::move(value)});
  };
  const bool is_phi3 = form.name == "phi3", is_cohere2 = form.name == "cohere2";
  add("freq_base", real_value(config.rope_theta));
  if (form.name == "olmo2" && has_local_rope(config))
    add("freq_base_swa", real_value(config.local_rope.theta));
  if (form.is_llama || is_phi3 || is_cohere2) add("dimension_count", size_value(rotated_elements(config)));
  if (is_cohere2) add("scaling.type", std::string("none"));
  if (scaling.type == RopeType::kLinear || scaling.type == RopeType::kYarn) {
    add("scaling.type", std::string(scaling.type == RopeType::kLinear ? "linear" : "yarn"));
    add("scaling.factor", real_value(scaling.factor));
  }
  if (scaling.type == RopeType::kYarn || scaling.type == RopeType::kLongRope || config.query_scale_beta != 0)
    add("scaling.original_context_length",
        size_value(config.query_scale_beta != 0 ? config.query_scale_positions
                                                : scaling.original_max_position_embeddings));
  if (scaling.type == RopeType::kYarn) {
    add("scaling.yarn_beta_fast", real_value(scaling.beta_fast));
    add("scaling.yarn_beta_slow", real_value(scaling.beta_slow));
    const bool has_log_multiplier = form.reads_yarn_betas && scaling.mscale_all_dim != 0;
    if (has_log_multiplier) add("scaling.yarn_log_multiplier", real_value(scaling.mscale_all_dim));
    const double factor = scaling.attention_factor / yarn_magnitude(scaling, has_log_multiplier);
    if (std::abs(factor - 1) > 1e-6) add("scaling.attn_factor", real_value(factor));
  }
  if (scaling.type == RopeType::kLongRope) {
    // Phi-3 takes the tensors without this.
    if (!is_phi3) add("scaling.type", std::string("longrope"));
    add("scaling.attn_factor", real_value(scaling.attention_factor));
  }
}

void add_window_fields(const ModelConfig& config, const GgufArchitecture& form, Fields& fields) {
  const int64_t window = config.sliding_window.empty() ? 0 : std::ranges::max(config.sliding_window);
  const std::string key = fmt::format("{}.attention.sliding_window", form.name);
  // llama.cpp reads Phi-3's without applying it.
  if (form.windows == GgufWindows::kPattern || form.name == "phi3")
    fields.push_back({key, size_value(window)});
  if (form.windows != GgufWindows::kListed || window == 0) return;
  fields.push_back({key, size_value(window)});
  GgufArray layers = {GgufScalar(false), {}};
  for (const int64_t of_layer : config.sliding_window) layers.values.emplace_back(of_layer != 0);
  fields.push_back({key + "_pattern", std::move(layers)});
}

}  // namespace

float gguf_norm_offset(const ModelConfig& config) {
  return config.norm == NormKind::kRmsPlusOne ? 1.0f : 0.0f;
}

std::vector<GgufField> gguf_model_fields(const ModelConfig& config, const std::string& origin) {
  check_gguf_architecture(config, origin);
  const GgufArchitecture& form = gguf_architecture(config, origin);
  Fields fields = {{"general.architecture", GgufScalar(std::string(form.name))}};
  const auto add = [&](const char* key, GgufScalar value) {
    fields.push_back({fmt::format("{}.{}", form.name, key), std::move(value)});
  };
  add("block_count", size_value(config.num_hidden_layers));
  add("context_length", size_value(config.max_position_embeddings));
  add("embedding_length", size_value(config.hidden_size));
  add("feed_forward_length", size_value(config.intermediate_size));
  add("attention.head_count", size_value(config.num_attention_heads));
  add("attention.head_count_kv", size_value(config.num_key_value_heads));
  const bool is_layernorm = config.norm == NormKind::kLayer;
  add(is_layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
      real_value(config.rms_norm_eps));
  add("attention.key_length", size_value(config.head_dim));
  add("attention.value_length", size_value(config.head_dim));
  add_rope_fields(config, form, fields);
  add_window_fields(config, form, fields);
  if (config.attention_softcap != 0) add("attn_logit_softcapping", real_value(config.attention_softcap));
  if (config.logits_softcap != 0) add("final_logit_softcapping", real_value(config.logits_softcap));
  if (form.name == "cohere2") add("logit_scale", real_value(config.logits_scale));
  if (form.is_llama || form.name == "cohere2") add("vocab_size", size_value(config.vocab_size));
  if (form.name == "granite") {
    add("attention.scale", real_value(config.attention_scale));
    add("embedding_scale", real_value(config.embedding_scale));
    add("residual_scale", real_value(config.residual_scale));
    add("logit_scale", real_value(1 / config.logits_scale));
  }
  if (config.query_scale_beta != 0) add("attention.temperature_scale", real_value(config.query_scale_beta));
  if (config.experts) {
    add("expert_count", size_value(config.experts->num_experts));
    add("expert_used_count", size_value(config.experts->num_experts_per_tok));
    // Mixtral's feed_forward_length is already that of an expert.
    if (form.name != "llama")
      add("expert_feed_forward_length", size_value(config.experts->moe_intermediate_size));
  }
  return fields;
}

namespace {

using TensorName = std::pair<std::string, std::string_view>;

// What llama.cpp calls the tensors whose names follow "model.layers.N.", and the others.
std::vector<TensorName> tensor_names(const ModelConfig& config) {
  const DecoderNames& names = family_info(config.family).names;
  std::vector<TensorName> all = {{names.embedding, "token_embd"}, {names.final_norm, "output_norm"},
                                 {names.lm_head, "output"},       {names.o, "attn_output"},
                                 {names.q_norm, "attn_q_norm"},   {names.k_norm, "attn_k_norm"},
                                 {names.down, "ffn_down"},        {names.router, "ffn_gate_inp"}};
  constexpr std::string_view kQkv[] = {"attn_q", "attn_k", "attn_v"}, kGateUp[] = {"ffn_gate", "ffn_up"};
  for (size_t i = 0; i < names.qkv.size(); ++i)
    all.emplace_back(names.qkv[i], names.qkv.size() == 1 ? "attn_qkv" : kQkv[i]);
  for (size_t i = 0; i < names.gate_up.size(); ++i)
    all.emplace_back(names.gate_up[i], names.gate_up.size() == 1 ? "ffn_up" : kGateUp[i]);
  const bool is_gpt_oss = family_info(config.family).gguf_architecture == "gpt-oss";
  // Llama's norm before the MLP has the name of Gemma's after attention.
  if (config.norm_placement != NormPlacement::kAfter) {
    all.emplace_back(names.attention_norm, "attn_norm");
    all.emplace_back(names.mlp_norm, is_gpt_oss ? "post_attention_norm" : "ffn_norm");
  }
  if (config.norm_placement != NormPlacement::kBefore) {
    all.emplace_back(names.attention_output_norm, "post_attention_norm");
    all.emplace_back(names.mlp_output_norm, "post_ffw_norm");
  }
  return all;
}

// The names of tensors that do not end with ".weight" or ".bias".
std::vector<TensorName> whole_tensor_names(const DecoderNames& names) {
  const std::string gate_up = names.experts + "." + names.expert_gate_up;
  const std::string down = names.experts + "." + names.expert_down;
  return {{names.sinks, "attn_sinks.weight"},
          {gate_up, "ffn_gate_up_exps.weight"},
          {gate_up + "_bias", "ffn_gate_up_exps.bias"},
          {down, "ffn_down_exps.weight"},
          {down + "_bias", "ffn_down_exps.bias"}};
}

// "mlp.experts.7.up_proj" -> "ffn_up_exps"; empty for other modules.
std::string_view expert_tensor_name(const DecoderNames& names, std::string_view module) {
  if (!module.starts_with(names.experts + ".")) return {};
  module.remove_prefix(names.experts.size() + 1);
  const size_t dot = module.find('.');
  if (dot == module.npos) return {};
  module.remove_prefix(dot + 1);
  if (module == names.expert_gate) return "ffn_gate_exps";
  if (module == names.expert_up) return "ffn_up_exps";
  return module == names.expert_down ? "ffn_down_exps" : std::string_view();
}

}  // namespace

std::string gguf_tensor_name(const ModelConfig& config, const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  std::string_view module = name;
  std::string prefix;
  if (module.starts_with(kLayers)) {
    module.remove_prefix(kLayers.size());
    const size_t dot = module.find('.');
    prefix = fmt::format("blk.{}.", module.substr(0, dot));
    module.remove_prefix(dot + 1);
  }
  const DecoderNames& family = family_info(config.family).names;
  const std::vector<TensorName> whole = whole_tensor_names(family);
  const auto at_whole = std::ranges::find(whole, module, &TensorName::first);
  if (at_whole != whole.end()) return prefix + std::string(at_whole->second);
  const size_t dot = module.rfind('.');
  const std::string_view of_expert = expert_tensor_name(family, module.substr(0, dot));
  if (!of_expert.empty()) return fmt::format("{}{}{}", prefix, of_expert, module.substr(dot));
  const std::vector<TensorName> names = tensor_names(config);
  const auto at = std::ranges::find(names, module.substr(0, dot), &TensorName::first);
  TESSERA_CHECK(at != names.end(), "tensor '{}'", name);
  return fmt::format("{}{}{}", prefix, at->second, module.substr(dot));
}

int64_t num_reordered_heads(const ModelConfig& config, std::string_view name) {
  if (!gguf_architecture(config, "").is_llama || config.rope_interleaved) return 0;
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

std::vector<GgufRopeTensor> gguf_rope_tensors(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto rounded = [](const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  if (scaling.type == RopeType::kLlama3) return {{"rope_freqs.weight", gguf_rope_divisors(config)}};
  if (scaling.type != RopeType::kLongRope) return {};
  return {{"rope_factors_long.weight", rounded(scaling.long_factor)},
          {"rope_factors_short.weight", rounded(scaling.short_factor)}};
}

std::string gguf_size_label(int64_t num_parameters, int64_t num_expert_parameters, int64_t num_experts) {
  if (num_experts > 0)
    return fmt::format(
        "{}x{}", num_experts,
        gguf_size_label(num_parameters - num_expert_parameters + num_expert_parameters / num_experts));
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
