// What the readers of config.json of all kinds of families share. Errors are those of model_config.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"

namespace tessera {

inline constexpr int64_t kMaxConfigInteger = std::numeric_limits<int32_t>::max();

// A size from 1 to `max`; `absent` if the field is missing, without it that is an error.
int64_t read_size(const JsonNode& size, std::optional<int64_t> absent, int64_t max);
// A number above 0, at most `max`.
double read_positive(const JsonNode& number, double absent, double max);
// A factor of some output: a number above 0, at most 1e9.
inline double read_factor(const JsonNode& number, double absent) {
  return read_positive(number, absent, 1e9);
}
// The soft cap of scores or logits; null: none (0), unlike an absent field.
inline double read_soft_cap(const JsonNode& fields, const char* name, double absent) {
  if (fields.contains(name) && fields[name].is_null()) return 0;
  return absent == 0 && !fields.contains(name) ? 0 : read_factor(fields[name], absent);
}
// The dictionary of the rotary embedding's settings.
JsonNode rope_fields(const JsonNode& fields);
// A probability below 1.
double read_dropout(const JsonNode& rate, double absent);
// bos_token_id, eos_token_id and pad_token_id; vocab_size is known.
void read_tokens(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config);

// rope_parameters, or rope_theta and rope_scaling; head_dim and max_position_embeddings are known.
void read_rope(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config);

// A mixture of experts: the values of absent fields.
struct MixtureDefaults {
  int64_t num_experts;
  int64_t num_experts_per_tok;
};

// num_experts or num_local_experts, num_experts_per_tok, output_router_logits and router_aux_loss_coef. Every
// layer has experts, as wide as a dense one and with normalized weights.
MixtureOfExperts read_mixture(const JsonNode& fields, const MixtureDefaults& defaults,
                              const ModelConfig& config);
// The layers that decoder_sparse_step and mlp_only_layers leave dense.
void read_dense_layers(const JsonNode& fields, MixtureOfExperts& experts);

// A decoder alone.
ModelConfig read_decoder_config(const JsonNode& fields, const FamilyInfo& family);

// An encoder and a decoder: T5, Flan-T5.
ModelConfig read_t5_config(const JsonNode& fields, const FamilyInfo& family);

// An encoder with a head that predicts masked tokens: BERT, XLM-RoBERTa, ModernBERT.
ModelConfig read_encoder_config(const JsonNode& fields, const FamilyInfo& family);

}  // namespace tessera
