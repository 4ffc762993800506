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

// What llama.cpp's code for an architecture computes, whatever the file says. Every layer but each
// window_pattern-th has the window.
struct FixedForm {
  std::string_view architecture;
  int64_t window_pattern;
  int64_t largest_layers;  // the number of layers of the model whose scores are scaled by hidden_size / heads
  bool caps_scores;        // always or never, and logits likewise
  bool ties_embeddings;
};
constexpr FixedForm kFixedForms[] = {
    {"gemma2", 2, 46, true, true}, {"gemma3", 6, 62, false, false}, {"cohere2", 4, 0, false, true}};

const FixedForm* fixed_form(const ModelConfig& config) {
  const auto at =
      std::ranges::find(kFixedForms, family_info(config.family).gguf_architecture, &FixedForm::architecture);
  return at == std::end(kFixedForms) ? nullptr : at;
}

void check_fixed_form(const ModelConfig& config, const FixedForm& form, const std::string& origin) {
  const auto refuse = [&](const std::string& what) {
    fail(ExitCode::kBadConfig, "{}: llama.cpp's {} {}: it cannot run this model", origin, form.architecture,
         what);
  };
  if (config.qkv_bias || config.o_bias) refuse("has no attention biases");
  if (form.ties_embeddings && !config.tie_word_embeddings) refuse("has no lm_head of its own");
  if ((config.attention_softcap != 0) != form.caps_scores || (config.logits_softcap != 0) != form.caps_scores)
    refuse(form.caps_scores ? "always has soft caps of scores and logits" : "has no soft caps");
  const int64_t heads = config.num_attention_heads;
  const int64_t scaled_by =
      config.num_hidden_layers == form.largest_layers ? config.hidden_size / heads : config.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(scaled_by));
  if (config.attention_scale != 0 && std::abs(config.attention_scale / scale - 1) > 1e-6)
    refuse(fmt::format("has query_pre_attn_scalar {} in a model of {} layers", scaled_by,
                       config.num_hidden_layers));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool has_window = config.sliding_window[static_cast<size_t>(layer)] != 0;
    if (has_window == ((layer + 1) % form.window_pattern == 0))
      refuse(fmt::format("has a sliding window in all layers but every {}th", form.window_pattern));
  }
  constexpr double kLocalTheta = 1e4;
  if (form.architecture == "gemma3" && config.local_rope != Rope{kLocalTheta})
    refuse("has rope_theta 10000 without scaling in layers with a window");
  const RopeType type = config.rope_scaling.type;
  if (type != RopeType::kDefault && (type != RopeType::kLinear || form.architecture != "gemma3"))
    refuse("has no such rope scaling");
}

void check_supported(const ModelConfig& config, const std::string& origin) {
  const std::string& model = family_info(config.family).architecture;
  if (family_info(config.family).gguf_architecture.empty())
    fail(ExitCode::kBadConfig, "{}: {} is not written as GGUF: use the Hugging Face folder", origin, model);
  if (const FixedForm* form = fixed_form(config)) return check_fixed_form(config, *form, origin);
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

bool gguf_has_sliding_window(const ModelConfig& config) { return fixed_form(config) != nullptr; }

float gguf_norm_offset(const ModelConfig& config) {
  return config.norm == NormKind::kRmsPlusOne ? 1.0f : 0.0f;
}

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
  const bool is_layernorm = config.norm == NormKind::kLayer;
  add(is_layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
      real(config.rms_norm_eps));
  add("attention.key_length", size(config.head_dim));
  add("attention.value_length", size(config.head_dim));
  add("rope.freq_base", real(config.rope_theta));
  if (config.rope_scaling.type == RopeType::kLinear) {
    add("rope.scaling.type", std::string("linear"));
    add("rope.scaling.factor", real(config.rope_scaling.factor));
  }
  if (gguf_has_sliding_window(config))
    add("attention.sliding_window", size(std::ranges::max(config.sliding_window)));
  if (config.attention_softcap != 0) add("attn_logit_softcapping", real(config.attention_softcap));
  if (config.logits_softcap != 0) add("final_logit_softcapping", real(config.logits_softcap));
  if (name == "cohere2") {
    add("logit_scale", real(config.logits_scale));
    add("vocab_size", size(config.vocab_size));
    add("rope.dimension_count", size(config.head_dim));
    add("rope.scaling.type", std::string("none"));
  }
  if (is_llama(config)) {
    add("vocab_size", size(config.vocab_size));
    add("rope.dimension_count", size(config.head_dim));
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
                                 {names.down, "ffn_down"}};
  constexpr std::string_view kQkv[] = {"attn_q", "attn_k", "attn_v"}, kGateUp[] = {"ffn_gate", "ffn_up"};
  for (size_t i = 0; i < names.qkv.size(); ++i)
    all.emplace_back(names.qkv[i], names.qkv.size() == 1 ? "attn_qkv" : kQkv[i]);
  for (size_t i = 0; i < names.gate_up.size(); ++i)
    all.emplace_back(names.gate_up[i], names.gate_up.size() == 1 ? "ffn_up" : kGateUp[i]);
  // Llama's norm before the MLP has the name of Gemma's after attention.
  if (config.norm_placement != NormPlacement::kAfter) {
    all.emplace_back(names.attention_norm, "attn_norm");
    all.emplace_back(names.mlp_norm, "ffn_norm");
  }
  if (config.norm_placement != NormPlacement::kBefore) {
    all.emplace_back(names.attention_output_norm, "post_attention_norm");
    all.emplace_back(names.mlp_output_norm, "post_ffw_norm");
  }
  return all;
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
  const size_t dot = module.rfind('.');
  const std::vector<TensorName> names = tensor_names(config);
  const auto at = std::ranges::find(names, module.substr(0, dot), &TensorName::first);
  TESSERA_CHECK(at != names.end(), "tensor '{}'", name);
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
