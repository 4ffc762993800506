#include "formats/huggingface/model_families.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"

namespace tessera {

const std::vector<FamilyInfo>& model_families() {
  static const std::vector<FamilyInfo> families = {
      {.family = ModelFamily::kLlama,
       .model_type = "llama",
       .architecture = "LlamaForCausalLM",
       .num_key_value_heads = 0,
       .head_dim = 0,
       .max_position_embeddings = 2048,
       .sliding_window = 0,
       .bos_token_id = 1,
       .eos_token_id = 2},
      {.family = ModelFamily::kMistral,
       .model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .num_key_value_heads = 8,
       .head_dim = 0,
       .max_position_embeddings = 131072,
       .sliding_window = 4096,
       .bos_token_id = 1,
       .eos_token_id = 2},
      {.family = ModelFamily::kQwen2,
       .model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .num_key_value_heads = 32,
       .head_dim = 0,
       .max_position_embeddings = 32768,
       .sliding_window = 4096,
       .bos_token_id = std::nullopt,
       .eos_token_id = std::nullopt},
      {.family = ModelFamily::kQwen3,
       .model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .num_key_value_heads = 32,
       .head_dim = 128,
       .max_position_embeddings = 32768,
       .sliding_window = 4096,
       .bos_token_id = std::nullopt,
       .eos_token_id = std::nullopt},
  };
  return families;
}

const FamilyInfo& family_info(ModelFamily family) {
  for (const FamilyInfo& info : model_families()) {
    if (info.family == family) return info;
  }
  TESSERA_CHECK(false, "family {}", static_cast<int>(family));
  return model_families().front();
}

const std::vector<UnsupportedField>& unsupported_fields() {
  static const std::vector<UnsupportedField> fields = {
      {"quantization_config", "null"},
      {"compression_config", "null"},
      // Dropout changes training, though not inference.
      {"attention_dropout", "0"},
      {"attention_probs_dropout_prob", "0"},
      {"hidden_dropout", "0"},
      {"hidden_dropout_prob", "0"},
      {"embd_pdrop", "0"},
      {"resid_pdrop", "0"},
      {"partial_rotary_factor", "1"},
      {"is_encoder_decoder", "false"},
      {"add_cross_attention", "false"},
      {"tie_encoder_decoder", "false"},
      {"pruned_heads", "{}"},
      // Mixture of experts.
      {"num_experts", "0"},
      {"num_local_experts", "0"},
      {"n_routed_experts", "0"},
      {"moe_intermediate_size", "null"},
      // Scales and caps in other families with the same layer names.
      {"attn_logit_softcapping", "null"},
      {"final_logit_softcapping", "null"},
      {"attention_multiplier", "null"},
      {"embedding_multiplier", "1"},
      {"residual_multiplier", "1"},
      {"logits_scaling", "1"},
      {"logit_scale", "1"},
      {"no_rope_layers", "null"},
      {"rope_interleaved", "false"},
      {"use_mrope", "false"},
  };
  return fields;
}

const std::vector<std::string>& understood_fields() {
  static const std::vector<std::string> fields = {
      "model_type",
      "architectures",
      "hidden_act",
      "vocab_size",
      "hidden_size",
      "intermediate_size",
      "num_hidden_layers",
      "num_attention_heads",
      "num_key_value_heads",
      "head_dim",
      "max_position_embeddings",
      "rms_norm_eps",
      "rope_theta",
      "rope_scaling",
      "rope_parameters",
      "original_max_position_embeddings",
      "tie_word_embeddings",
      "attention_bias",
      "mlp_bias",
      "initializer_range",
      "sliding_window",
      "use_sliding_window",
      "max_window_layers",
      "layer_types",
      "bos_token_id",
      "eos_token_id",
      "pad_token_id",
  };
  return fields;
}

bool is_understood_field(const std::string& name) {
  const auto& understood = understood_fields();
  if (std::find(understood.begin(), understood.end(), name) != understood.end()) return true;
  return std::any_of(unsupported_fields().begin(), unsupported_fields().end(),
                     [&](const UnsupportedField& field) { return field.name == name; });
}

bool is_harmless_field(const std::string& name) {
  static const std::unordered_set<std::string> fields = {
      // Provenance and storage.
      "_name_or_path",
      "transformers_version",
      "torch_dtype",
      "dtype",
      "_attn_implementation",
      "_attn_implementation_autoset",
      "_commit_hash",
      "_experts_implementation",
      "tokenizer_class",
      "use_bfloat16",
      "torchscript",
      "unsloth_fixed",
      "unsloth_version",
      // Outputs of a forward pass, caches, other tasks.
      "use_cache",
      "return_dict",
      "return_dict_in_generate",
      "output_attentions",
      "output_hidden_states",
      "output_scores",
      "is_decoder",
      "cross_attention_hidden_size",
      "chunk_size_feed_forward",
      "finetuning_task",
      "id2label",
      "label2id",
      "num_labels",
      "problem_type",
      "task_specific_params",
      "tf_legacy_loss",
      "prefix",
      "base_model_tp_plan",
      "base_model_pp_plan",
      // Generation settings that version 4 kept here.
      "max_length",
      "min_length",
      "max_new_tokens",
      "do_sample",
      "early_stopping",
      "num_beams",
      "num_beam_groups",
      "diversity_penalty",
      "temperature",
      "top_k",
      "top_p",
      "typical_p",
      "repetition_penalty",
      "length_penalty",
      "no_repeat_ngram_size",
      "encoder_no_repeat_ngram_size",
      "bad_words_ids",
      "num_return_sequences",
      "sep_token_id",
      "cls_token_id",
      "unk_token_id",
      "mask_token_id",
      "is_llama_config",
      "pretraining_tp",  // how version 4 cut its products
      "transformers.js_config",
      "max_sequence_length",
      "decoder_start_token_id",
      "forced_bos_token_id",
      "forced_eos_token_id",
      "remove_invalid_values",
      "suppress_tokens",
      "begin_suppress_tokens",
      "exponential_decay_length_penalty",
  };
  return fields.contains(name);
}

bool is_rope_field(const std::string& name) {
  static const std::unordered_set<std::string> fields = {
      "rope_type",
      "type",
      "rope_theta",
      "factor",
      "low_freq_factor",
      "high_freq_factor",
      "original_max_position_embeddings",
      "partial_rotary_factor",
  };
  return fields.contains(name);
}

bool is_rope_field_of_other_types(const std::string& name) {
  static const std::unordered_set<std::string> fields = {
      "attention_factor", "beta_fast", "beta_slow",      "long_factor",
      "mscale",           "truncate",  "mscale_all_dim", "short_factor",
  };
  return fields.contains(name);
}

}  // namespace tessera
