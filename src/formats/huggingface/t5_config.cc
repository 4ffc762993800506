// config.json of T5 (T5Config of transformers): v1.0 with relu and one table for embedding and LM head, v1.1
// and Flan with a gated gelu and a table each.
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

struct ActivationWord {
  const char* word;
  Activation activation;
};
// ACT2FN's names are those after "gated-"; gated-gelu is the approximation by tanh (gelu_new), as T5Config
// sets it.
constexpr std::array kActivations = {ActivationWord{"relu", Activation::kRelu},
                                     ActivationWord{"gated-gelu", Activation::kGatedGeluTanh},
                                     ActivationWord{"gated-gelu_new", Activation::kGatedGeluTanh},
                                     ActivationWord{"gated-silu", Activation::kGatedSilu}};

Activation read_activation(const JsonNode& field) {
  const std::string word = field.string_or("relu");
  for (const ActivationWord& known : kActivations) {
    if (word == known.word) return known.activation;
  }
  fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected relu, gated-gelu or gated-silu",
       field.origin(), field.path(), printable(word));
}

EncoderDecoder read_encoder_decoder(const JsonNode& fields, const ModelConfig& config, int64_t num_layers) {
  EncoderDecoder stacks;
  stacks.num_encoder_layers = num_layers;
  stacks.relative_attention_num_buckets = read_size(fields["relative_attention_num_buckets"], 32, 1 << 16);
  stacks.relative_attention_max_distance =
      read_size(fields["relative_attention_max_distance"], 128, kMaxConfigInteger);
  // Half of the encoder's buckets are for keys after the query, half of those for one distance each.
  if (stacks.relative_attention_num_buckets % 4 != 0)
    fields["relative_attention_num_buckets"].expected("a multiple of 4");
  if (stacks.relative_attention_max_distance <= stacks.relative_attention_num_buckets / 2)
    fields["relative_attention_max_distance"].expected(fmt::format(
        "more than relative_attention_num_buckets / 2 = {}", stacks.relative_attention_num_buckets / 2));
  // T5's decoder starts with the padding token.
  stacks.decoder_start_token_id =
      static_cast<int32_t>(fields["decoder_start_token_id"].is_null()
                               ? config.pad_token_id.value_or(0)
                               : fields["decoder_start_token_id"].integer(0, config.vocab_size - 1));
  // T5Config: outputs are scaled unless the file says that the tables differ, or says it itself.
  stacks.scale_decoder_outputs =
      fields["scale_decoder_outputs"].boolean_or(fields["tie_word_embeddings"].boolean_or(true));
  return stacks;
}

void check_t5_total(const JsonNode& fields, const ModelConfig& config) {
  constexpr double kMaxParameters = 1e15;
  const auto hidden = static_cast<double>(config.hidden_size);
  const double attention = 8 * hidden * static_cast<double>(config.num_attention_heads * config.head_dim);
  const double total = static_cast<double>(config.num_hidden_layers) *
                           (attention + 3 * hidden * static_cast<double>(config.intermediate_size)) +
                       2 * hidden * static_cast<double>(config.vocab_size);
  if (total > kMaxParameters)
    fail(ExitCode::kBadData, "{}: describes a model of {:.3g} parameters, expected at most {:.0e}",
         fields.origin(), total, kMaxParameters);
}

}  // namespace

std::vector<std::string> lora_module_names(const ModelConfig& config) {
  if (!config.encoder_decoder) return family_info(config.family).lora_modules;
  if (!is_gated(config.activation)) return {"q", "k", "v", "o", "wi", "wo"};
  return {"q", "k", "v", "o", "wi_0", "wi_1", "wo"};
}

ModelConfig read_t5_config(const JsonNode& fields, const FamilyInfo& family) {
  ModelConfig config;
  config.family = family.model_type;
  config.vocab_size = read_size(fields["vocab_size"], 32128, kMaxConfigInteger);
  config.hidden_size = read_size(fields["d_model"], 512, 1 << 20);
  config.intermediate_size = read_size(fields["d_ff"], 2048, 1 << 22);
  config.num_attention_heads = read_size(fields["num_heads"], 8, 1 << 16);
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = read_size(fields["d_kv"], family.head_dim, 1 << 16);
  const int64_t num_layers = read_size(fields["num_layers"], 6, 10'000);
  config.num_hidden_layers = num_layers + read_size(fields["num_decoder_layers"], num_layers, 10'000);
  config.max_position_embeddings = kMaxConfigInteger;  // relative positions have no end
  check_t5_total(fields, config);
  config.rms_norm_eps = read_positive(fields["layer_norm_epsilon"], 1e-6, 1);
  config.initializer_range = read_positive(fields["initializer_factor"], 1, 100);
  config.activation = read_activation(fields["feed_forward_proj"]);
  read_tokens(fields, family, config);
  if (!fields.contains("pad_token_id")) config.pad_token_id = 0;
  config.tie_word_embeddings = fields["tie_word_embeddings"].boolean_or(true);
  config.encoder_decoder = read_encoder_decoder(fields, config, num_layers);
  const double rate = read_dropout(fields["dropout_rate"], 0.1);
  config.dropout = {rate, rate, rate, rate, rate, rate};
  return config;
}

}  // namespace tessera
