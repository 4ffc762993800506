// config.json of BERT, XLM-RoBERTa and ModernBERT (BertConfig, XLMRobertaConfig and ModernBertConfig of
// transformers).
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

void check_gelu(const JsonNode& field) {
  const std::string word = field.string_or("gelu");
  if (word != "gelu")
    fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected gelu", field.origin(),
         field.path(), printable(word));
}

void read_encoder_sizes(const JsonNode& fields, bool is_modernbert, ModelConfig& config) {
  const auto size = [&](const char* name, int64_t of_bert, int64_t of_modernbert, int64_t max) {
    return read_size(fields[name], is_modernbert ? of_modernbert : of_bert, max);
  };
  config.vocab_size = size("vocab_size", 30522, 50368, kMaxConfigInteger);
  config.hidden_size = size("hidden_size", 768, 768, 1 << 20);
  config.intermediate_size = size("intermediate_size", 3072, 1152, 1 << 22);
  config.num_hidden_layers = size("num_hidden_layers", 12, 22, 10'000);
  config.num_attention_heads = config.num_key_value_heads = size("num_attention_heads", 12, 12, 1 << 16);
  config.max_position_embeddings = size("max_position_embeddings", 512, 8192, kMaxConfigInteger);
  if (config.hidden_size % config.num_attention_heads != 0)
    fields["hidden_size"].expected(
        fmt::format("a multiple of num_attention_heads = {}", config.num_attention_heads));
  config.head_dim = config.hidden_size / config.num_attention_heads;
  constexpr double kMaxParameters = 1e15;
  const auto hidden = static_cast<double>(config.hidden_size);
  const double total =
      static_cast<double>(config.num_hidden_layers) *
          (4 * hidden * hidden + 3 * hidden * static_cast<double>(config.intermediate_size)) +
      hidden * static_cast<double>(config.vocab_size + config.max_position_embeddings);
  if (total > kMaxParameters)
    fail(ExitCode::kBadData, "{}: describes a model of {:.3g} parameters, expected at most {:.0e}",
         fields.origin(), total, kMaxParameters);
}

// Which layers see a window alone, and the bases of both rotary embeddings.
void read_modernbert(const JsonNode& fields, ModelConfig& config, EncoderOnly& encoder) {
  encoder.norm_first = true;
  encoder.has_positions = false;
  // Absent and null are not the same: ModernBertConfig has 2, and ModernBertPreTrainedModel takes 3 for None.
  const JsonNode cutoff = fields["initializer_cutoff_factor"];
  encoder.initializer_cutoff_factor =
      read_positive(cutoff, fields.contains("initializer_cutoff_factor") ? 3 : 2, 1000);
  encoder.norm_bias = fields["norm_bias"].boolean_or(false);
  encoder.transform_bias = fields["classifier_bias"].boolean_or(false);
  encoder.lm_head_bias = fields["decoder_bias"].boolean_or(true);
  check_gelu(fields["hidden_activation"]);
  check_gelu(fields["classifier_activation"]);
  config.activation = Activation::kGatedGelu;
  config.qkv_bias = config.o_bias = fields["attention_bias"].boolean_or(false);
  config.mlp_bias = fields["mlp_bias"].boolean_or(false);
  if (config.head_dim % 2 != 0)
    fields["num_attention_heads"].expected("heads of an even number of elements for rotary embeddings");
  const int64_t local = read_size(fields["local_attention"], 128, kMaxConfigInteger);
  const int64_t every = read_size(fields["global_attn_every_n_layers"], 3, 10'000);
  const JsonNode types = fields["layer_types"];
  if (!types.is_null() && (!types.is_list() || std::ssize(types.json()) != config.num_hidden_layers))
    types.expected(fmt::format("a list of num_hidden_layers = {} names", config.num_hidden_layers));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    bool is_local = layer % every != 0;
    if (!types.is_null()) {
      const std::string& type = types[static_cast<size_t>(layer)].string();
      if (type != "full_attention" && type != "sliding_attention")
        fail(ExitCode::kBadConfig,
             "{}: field 'layer_types': '{}' is not supported, expected full_attention or sliding_attention",
             fields.origin(), printable(type));
      is_local = type == "sliding_attention";
    }
    // Keys are seen up to half of the window away.
    config.sliding_window.push_back(is_local ? local / 2 + 1 : 0);
  }
  const auto theta = [&](const char* kind, const char* old_name, double absent) {
    const JsonNode rope = fields["rope_parameters"][kind];
    const std::string type = rope["rope_type"].string_or("default");
    if (type != "default")
      fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected default", fields.origin(),
           rope["rope_type"].path(), printable(type));
    return read_positive(rope["rope_theta"], read_positive(fields[old_name], absent, 1e18), 1e18);
  };
  config.rope_theta = theta("full_attention", "global_rope_theta", 160'000);
  encoder.local_rope_theta = theta("sliding_attention", "local_rope_theta", 10'000);
}

DropoutRates read_encoder_dropout(const JsonNode& fields, bool is_modernbert) {
  DropoutRates rates;
  if (is_modernbert) {
    rates.embedding = read_dropout(fields["embedding_dropout"], 0);
    rates.attention = rates.attention_output = read_dropout(fields["attention_dropout"], 0);
    rates.mlp_hidden = read_dropout(fields["mlp_dropout"], 0);
  } else {
    rates.embedding = rates.attention_output = rates.mlp_output =
        read_dropout(fields["hidden_dropout_prob"], 0.1);
    rates.attention = read_dropout(fields["attention_probs_dropout_prob"], 0.1);
  }
  return rates;
}

}  // namespace

ModelConfig read_encoder_config(const JsonNode& fields, const FamilyInfo& family) {
  ModelConfig config;
  config.family = family.model_type;
  const bool is_modernbert = family.model_type == "modernbert";
  read_encoder_sizes(fields, is_modernbert, config);
  config.rms_norm_eps = is_modernbert ? read_positive(fields["norm_eps"], 1e-5, 1)
                                      : read_positive(fields["layer_norm_eps"], 1e-12, 1);
  config.initializer_range = read_positive(fields["initializer_range"], 0.02, 100);
  config.tie_word_embeddings = true;
  read_tokens(fields, family, config);
  EncoderOnly encoder;
  if (is_modernbert) {
    read_modernbert(fields, config, encoder);
  } else {
    check_gelu(fields["hidden_act"]);
    config.activation = Activation::kGelu;
    config.qkv_bias = config.o_bias = config.mlp_bias = true;
    encoder.type_vocab_size = read_size(fields["type_vocab_size"], 2, kMaxConfigInteger);
    if (family.model_type == "xlm-roberta") {
      // Positions begin after the padding token's.
      encoder.position_offset = config.pad_token_id.value_or(1) + 1;
      config.max_position_embeddings -= encoder.position_offset;
      if (config.max_position_embeddings < 1)
        fields["max_position_embeddings"].expected(fmt::format("more than {}", encoder.position_offset));
    }
  }
  config.encoder = encoder;
  config.dropout = read_encoder_dropout(fields, is_modernbert);
  return config;
}

}  // namespace tessera
