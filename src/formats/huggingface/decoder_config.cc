// config.json of decoders. Defaults of absent fields are those of transformers' configuration classes, in the
// spelling of version 4 and of version 5.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

constexpr int64_t kMaxInt32 = kMaxConfigInteger;
// The routing of a token takes memory of the thread that computes it (kernels/moe/moe.h).
constexpr int64_t kMaxExpertsOfConfig = 1024;

using ActivationWord = std::pair<std::string, Activation>;

void read_activation_and_check_biases(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  const std::string activation = fields[family.activation_field].string_or(family.activations.front().first);
  const auto known = std::ranges::find(family.activations, activation, &ActivationWord::first);
  if (known == family.activations.end())
    fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected '{}'", fields.origin(),
         family.activation_field, printable(activation), family.activations.front().first);
  config.activation = known->second;
  // Transformers has no such bias in these families and ignores the fields.
  const auto warn_without_effect = [&](const char* name) {
    if (fields[name].boolean_or(false))
      log_warning("{}: field '{}' has no effect for model_type '{}'", fields.origin(), name,
                  family.model_type);
  };
  if (!family.has_mlp_bias) warn_without_effect("mlp_bias");
  if (!family.has_attention_bias && !family.has_qkv_bias) warn_without_effect("attention_bias");
  if (family.has_qkv_bias && !fields["attention_bias"].boolean_or(true))
    log_warning(
        "{}: field 'attention_bias' has no effect for model_type '{}': its q, k and v projections always "
        "have "
        "a bias",
        fields.origin(), family.model_type);
}

std::optional<int64_t> required_unless(int64_t absent) {
  return absent == 0 ? std::nullopt : std::optional(absent);
}

void read_sizes(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  config.vocab_size = read_size(fields["vocab_size"], required_unless(family.vocab_size), kMaxInt32);
  config.hidden_size = read_size(fields["hidden_size"], std::nullopt, 1 << 20);
  config.intermediate_size = read_size(fields["intermediate_size"], std::nullopt, 1 << 22);
  config.num_hidden_layers = read_size(fields["num_hidden_layers"], std::nullopt, 10'000);
  config.num_attention_heads =
      read_size(fields["num_attention_heads"], required_unless(family.num_attention_heads), 1 << 16);
  // null means as many as query heads in every family; if absent, the family's default applies.
  const int64_t absent_kv_heads = fields.contains("num_key_value_heads") || family.num_key_value_heads == 0
                                      ? config.num_attention_heads
                                      : family.num_key_value_heads;
  config.num_key_value_heads = read_size(fields["num_key_value_heads"], absent_kv_heads, 1 << 16);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    fields["num_attention_heads"].expected(
        fmt::format("a multiple of num_key_value_heads = {}", config.num_key_value_heads));
  const bool head_dim_follows = fields["head_dim"].is_null() && family.head_dim == 0;
  if (head_dim_follows && config.hidden_size % config.num_attention_heads != 0)
    fields["hidden_size"].expected(fmt::format(
        "a multiple of num_attention_heads = {} when head_dim is not given", config.num_attention_heads));
  const int64_t absent_head_dim =
      family.head_dim != 0 ? family.head_dim : config.hidden_size / config.num_attention_heads;
  config.head_dim = read_size(fields["head_dim"], absent_head_dim, 1 << 16);
  if (config.head_dim % 2 != 0)
    fail(ExitCode::kBadData, "{}: field 'head_dim': expected an even number for rotary embeddings, found {}",
         fields.origin(), config.head_dim);
  config.max_position_embeddings =
      read_size(fields["max_position_embeddings"], family.max_position_embeddings, kMaxInt32);
  config.rms_norm_eps = read_positive(fields[family.norm_eps_field], family.norm_eps, 1);
  config.initializer_range = fields["initializer_range"].number_or(0.02);
  if (!(config.initializer_range >= 0 && config.initializer_range <= 100))
    fields["initializer_range"].expected("a number from 0 to 100");
}

// Each size alone may be large, but element and byte counts of the whole model must not overflow.
void check_total(const JsonNode& fields, const ModelConfig& config) {
  constexpr double kMaxParameters = 1e15;
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto heads = static_cast<double>(config.num_attention_heads + config.num_key_value_heads);
  const double attention = 2 * hidden * heads * static_cast<double>(config.head_dim);
  const double mlp = 3 * hidden * static_cast<double>(config.intermediate_size);
  const double total = static_cast<double>(config.num_hidden_layers) * (attention + mlp) +
                       2 * hidden * static_cast<double>(config.vocab_size);
  if (total > kMaxParameters)
    fail(ExitCode::kBadData, "{}: describes a model of {:.3g} parameters, expected at most {:.0e}",
         fields.origin(), total, kMaxParameters);
}

// The layers with a sliding window, if layer_types lists them.
std::optional<std::vector<bool>> read_layer_types(const JsonNode& fields, int64_t num_layers) {
  const JsonNode types = fields["layer_types"];
  if (types.is_null()) return std::nullopt;
  if (!types.is_list() || types.json().size() != static_cast<size_t>(num_layers))
    types.expected(fmt::format("a list of num_hidden_layers = {} names", num_layers));
  std::vector<bool> windowed;
  for (const Json& type : types.json()) {
    if (type != "full_attention" && type != "sliding_attention")
      fail(ExitCode::kBadConfig,
           "{}: field 'layer_types': {} is not supported, expected full_attention or sliding_attention",
           fields.origin(), printable(type.dump()));
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

// Every how many layers one has no window.
int64_t read_pattern(const JsonNode& fields, int64_t absent) {
  const JsonNode pattern = fields["sliding_window_pattern"];
  return read_size(pattern.is_null() ? fields["_sliding_window_pattern"] : pattern, absent, 10'000);
}

void read_sliding_window(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  const int64_t num_layers = config.num_hidden_layers;
  const bool takes_types = family.window_layers != WindowLayers::kNone;
  const bool after_first = family.window_layers == WindowLayers::kAfterFirst;
  // null means none, even if the family has one when the field is absent.
  const int64_t absent = fields.contains("sliding_window") ? 0 : family.sliding_window;
  int64_t window = read_size(fields["sliding_window"], absent, kMaxInt32);
  const bool asks = after_first || family.window_layers == WindowLayers::kIfUsed;
  if (asks && !fields["use_sliding_window"].boolean_or(false)) window = 0;
  if (!takes_types && window != 0) {
    log_warning("{}: field 'sliding_window' has no effect for model_type '{}'", fields.origin(),
                family.model_type);
    window = 0;
  }
  config.sliding_window.assign(static_cast<size_t>(num_layers), window);
  if (after_first) {
    const int64_t full_layers = fields["max_window_layers"].integer_or(28);
    for (int64_t layer = 0; layer < std::min(full_layers, num_layers); ++layer)
      config.sliding_window[static_cast<size_t>(layer)] = 0;
  }
  if (family.window_layers == WindowLayers::kPattern) {
    const int64_t pattern = read_pattern(fields, family.window_pattern);
    for (int64_t layer = pattern - 1; layer < num_layers; layer += pattern)
      config.sliding_window[static_cast<size_t>(layer)] = 0;
  }
  const auto windowed = read_layer_types(fields, num_layers);
  for (size_t layer = 0; windowed && layer < windowed->size(); ++layer) {
    const bool has_window = (*windowed)[layer];
    if ((has_window && window == 0) || (!has_window && window != 0 && !takes_types))
      fail(ExitCode::kBadData, "{}: field 'layer_types': layer {} is {} but sliding_window is {}",
           fields.origin(), layer, has_window ? "sliding_attention" : "full_attention",
           window == 0 ? "not in use" : std::to_string(window));
    config.sliding_window[layer] = has_window ? window : 0;
  }
}

// nullopt for an id that no token has: it never ends or begins a text, so that it has no effect.
std::optional<int64_t> read_token(const JsonNode& token, int64_t vocab_size) {
  const int64_t id = token.integer();
  if (0 <= id && id < vocab_size) return id;
  // The first Llama conversions wrote -1 for none.
  if (id != -1)
    log_warning("{}: field '{}': {} has no effect: ids are from 0 to vocab_size - 1 = {}", token.origin(),
                token.path(), id, vocab_size - 1);
  return std::nullopt;
}

}  // namespace

int64_t read_size(const JsonNode& size, std::optional<int64_t> absent, int64_t max) {
  return size.is_null() && absent ? *absent : size.integer(1, max);
}

double read_dropout(const JsonNode& rate, double absent) {
  const double value = rate.number_or(absent);
  if (!(value >= 0 && value < 1)) rate.expected("a number from 0 to below 1");
  return value;
}

double read_positive(const JsonNode& number, double absent, double max) {
  const double value = number.number_or(absent);
  if (!(value > 0 && value <= max)) number.expected(fmt::format("a number above 0, at most {}", max));
  return value;
}

void read_tokens(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  const auto read = [&](const char* name, std::optional<int64_t> absent) -> std::optional<int64_t> {
    if (!fields.contains(name)) return absent && *absent < config.vocab_size ? absent : std::nullopt;
    return fields[name].is_null() ? std::nullopt : read_token(fields[name], config.vocab_size);
  };
  config.bos_token_id = read("bos_token_id", family.bos_token_id);
  const JsonNode pad = fields["pad_token_id"];
  // The padding token is a row of the embedding.
  if (!pad.is_null() && pad.integer() >= config.vocab_size)
    pad.expected(fmt::format("an id from 0 to vocab_size - 1 = {}", config.vocab_size - 1));
  config.pad_token_id = read("pad_token_id", family.pad_token_id);
  const JsonNode eos = fields["eos_token_id"];
  if (!eos.is_list()) {
    if (const auto id = read("eos_token_id", family.eos_token_id)) config.eos_token_ids.push_back(*id);
    return;
  }
  for (const JsonNode& node : eos.list()) {
    if (const auto id = read_token(node, config.vocab_size)) config.eos_token_ids.push_back(*id);
  }
}

MixtureOfExperts read_mixture(const JsonNode& fields, const MixtureDefaults& defaults,
                              const ModelConfig& config) {
  MixtureOfExperts experts;
  // Transformers 5 writes num_local_experts for both.
  const JsonNode local = fields["num_local_experts"], other = fields["num_experts"];
  experts.num_experts = read_size(local.is_null() ? other : local, defaults.num_experts, kMaxExpertsOfConfig);
  if (!other.is_null() && other.integer() != experts.num_experts)
    other.expected(fmt::format("num_local_experts = {}", experts.num_experts));
  experts.num_experts_per_tok =
      read_size(fields["num_experts_per_tok"], defaults.num_experts_per_tok, experts.num_experts);
  const double coefficient = fields["router_aux_loss_coef"].number_or(0.001);
  if (!(coefficient >= 0 && coefficient <= 1e6))
    fields["router_aux_loss_coef"].expected("a number from 0 to 1e6");
  if (fields["output_router_logits"].boolean_or(false)) experts.router_aux_loss_coef = coefficient;
  experts.moe_intermediate_size = config.intermediate_size;
  experts.norm_topk_prob = true;
  experts.layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  return experts;
}

void read_dense_layers(const JsonNode& fields, MixtureOfExperts& experts) {
  const auto num_layers = std::ssize(experts.layers);
  const int64_t every = read_size(fields["decoder_sparse_step"], 1, kMaxConfigInteger);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    experts.layers[static_cast<size_t>(layer)] = (layer + 1) % every == 0;
  }
  if (const JsonNode dense = fields["mlp_only_layers"]; !dense.is_null()) {
    for (const JsonNode& layer : dense.list()) {
      const int64_t index = layer.integer(0, kMaxConfigInteger);
      if (index < num_layers) experts.layers[static_cast<size_t>(index)] = false;
    }
  }
  if (std::ranges::find(experts.layers, true) == experts.layers.end())
    fail(ExitCode::kBadConfig,
         "{}: fields 'mlp_only_layers' and 'decoder_sparse_step': expected a layer with experts, found none",
         fields.origin());
}

ModelConfig read_decoder_config(const JsonNode& fields, const FamilyInfo& family) {
  ModelConfig config;
  config.family = family.model_type;
  read_activation_and_check_biases(fields, family, config);
  read_sizes(fields, family, config);
  check_total(fields, config);
  read_sliding_window(fields, family, config);
  read_rope(fields, family, config);
  read_tokens(fields, family, config);
  config.dropout.attention = read_dropout(fields["attention_dropout"], 0);
  config.tie_word_embeddings = fields["tie_word_embeddings"].boolean_or(family.tie_word_embeddings);
  config.o_bias = family.has_attention_bias && fields["attention_bias"].boolean_or(false);
  config.qkv_bias = config.o_bias || family.has_qkv_bias;
  config.mlp_bias = family.has_mlp_bias && fields["mlp_bias"].boolean_or(false);
  config.qk_norm = family.has_qk_norm;
  config.qk_norm_whole = family.qk_norm_whole;
  config.norm_placement = family.norm_placement;
  if (family.read != nullptr) family.read(fields, config);
  return config;
}

}  // namespace tessera
