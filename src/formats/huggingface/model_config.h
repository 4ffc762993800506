// config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/huggingface/lora_config.h"
#include "tensor/activation.h"
#include "tensor/quantization.h"

namespace tessera {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope };

// By type; rope_table.h has the formulas.
struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1;
  double low_freq_factor = 1;                       // llama3
  double high_freq_factor = 4;                      // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3, yarn, longrope
  double attention_factor = 1;                      // yarn, longrope: times cosines and sines
  double beta_fast = 32;                            // yarn
  double beta_slow = 1;                             // yarn
  bool truncate = true;                             // yarn
  double mscale_all_dim = 0;                        // yarn; attention_factor has its effect
  // longrope: of each frequency, in rows up to the original length, and in longer ones
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};

  bool operator==(const RopeScaling&) const = default;
};

// The rotary embedding of some layers.
struct Rope {
  double theta = 10000;
  RopeScaling scaling = {};

  bool operator==(const Rope&) const = default;
};

// What a decoder's norms compute: w x / rms(x), (1 + w) x / rms(x), or w (x - mean) / deviation.
enum class NormKind { kRms, kRmsPlusOne, kLayer };
// Where they are: before attention and MLP, at their outputs, or both.
enum class NormPlacement { kBefore, kAfter, kBoth };
// The rotary embedding of a layer: none, ModelConfig::rope_theta's, or ModelConfig::local_rope.
enum class LayerRope { kNone, kGlobal, kLocal };

// An encoder whose output a decoder attends to, with T5's relative positions: scores have a bias by the
// bucket of the distance between query and key, from one table for all layers of a stack.
struct EncoderDecoder {
  int64_t num_encoder_layers = 0;  // the first of num_hidden_layers; the others are the decoder's
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  int32_t decoder_start_token_id = 0;  // comes before the target's tokens
  bool scale_decoder_outputs = false;  // by 1 / sqrt(hidden_size), before the LM head

  bool operator==(const EncoderDecoder&) const = default;
};

// An encoder alone: every token attends to the tokens on both sides, and some of them are predicted.
struct EncoderOnly {
  bool norm_first = false;  // before attention and MLP (ModernBERT) rather than after their sums (BERT)
  bool norm_bias = true;
  int64_t type_vocab_size = 0;  // token types; 0: none
  bool has_positions = true;    // a table of absolute positions rather than rotary ones
  int64_t position_offset = 0;  // of the first position in the table
  double local_rope_theta = 0;  // of layers with a sliding window; rope_theta is that of the others
  bool transform_bias = true;   // of the layer before the LM head
  bool lm_head_bias = true;
  double initializer_cutoff_factor = 0;  // initial values are at most this many deviations; 0: any

  bool operator==(const EncoderOnly&) const = default;
};

// Feed-forward layers of experts, of which every token takes a few: Qwen3-MoE, Mixtral, GPT-OSS.
struct MixtureOfExperts {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;  // of an expert
  bool norm_topk_prob = false;        // the weights of a token's experts add up to 1
  // Weight of the loss of the balance between experts; 0 unless output_router_logits.
  double router_aux_loss_coef = 0;
  std::vector<bool> layers;  // which have experts; the others are dense
  // GPT-OSS: matrices are [in, out], those of a layer's experts one tensor of the files; columns of gate and
  // up alternate, and their activation is another. The router and the experts have biases.
  std::optional<ClampedSwiglu> fused = {};

  bool operator==(const MixtureOfExperts&) const = default;
};

// The probabilities with which training drops elements, by place.
struct DropoutRates {
  double embedding = 0;         // of what enters the first layer of a stack
  double attention = 0;         // of the probabilities
  double attention_output = 0;  // of what a layer's attention adds to the stream
  double mlp_hidden = 0;        // between the products of the MLP
  double mlp_output = 0;        // of what the MLP adds to the stream
  double stack_output = 0;      // of the norm after the last layer of a stack

  bool operator==(const DropoutRates&) const = default;
  bool any() const { return *this != DropoutRates(); }
};

// Fields spelled as in Hugging Face's Llama; those of other families that mean the same are read into them.
struct ModelConfig {
  std::string family = "llama";  // its model_type (model_families.h)
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // q_proj, k_proj, v_proj: attention_bias of Llama and Qwen3, always in Qwen2
  bool o_bias = false;    // o_proj: attention_bias of Llama and Qwen3
  bool mlp_bias = false;
  bool qk_norm = false;        // q_norm, k_norm
  bool qk_norm_whole = false;  // over all heads at once (OLMo 2) rather than over each (Qwen3)
  Activation activation = Activation::kGatedSilu;
  // Options of decoders: Llama has none of them.
  NormKind norm = NormKind::kRms;
  NormPlacement norm_placement = NormPlacement::kBefore;
  bool parallel_blocks = false;         // attention and MLP read the same norm
  double embedding_scale = 1;           // of the embedding's output
  bool rounds_embedding_scale = false;  // to the type of the activations (Gemma)
  double residual_scale = 1;            // of what attention and MLP add to the stream
  double attention_scale = 0;           // of scores; 0: 1 / sqrt(head_dim)
  bool attention_sinks = false;         // softmax counts a logit of each head as well (GPT-OSS)
  double attention_softcap = 0;         // c: scores become c tanh(score / c); 0: they stay as they are
  double logits_scale = 1;              // of logits, before their soft cap
  double logits_softcap = 0;            // as of scores
  int64_t rotary_dim = 0;               // the first elements of a head that are rotated; 0: all
  bool rope_interleaved = false;        // pairs are neighbours rather than halves
  std::vector<LayerRope> layer_rope;    // per layer; empty: all kGlobal
  Rope local_rope;
  // Queries at position p are scaled by 1 + beta log(1 + floor(p / positions)); beta 0: they are not.
  double query_scale_beta = 0;
  int64_t query_scale_positions = 0;
  std::optional<MixtureOfExperts> experts;  // of decoders
  DropoutRates dropout;
  std::optional<EncoderDecoder> encoder_decoder;
  std::optional<EncoderOnly> encoder;  // neither is set: a decoder alone
  double initializer_range = 0.02;
  std::vector<int64_t> sliding_window;  // per layer, 0 = none
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  // The file's text; harmless fields that we do not interpret are written back from it.
  std::string json;
  // Not in config.json: adapters that are trained, while all weights stay as they are.
  std::optional<LoraConfig> lora;
  // The form in which the matrices of the layers are kept beside them.
  Quantization base_quantization = Quantization::kNone;

  bool has_experts(int64_t layer) const { return experts && experts->layers[static_cast<size_t>(layer)]; }
};

// Elements of a head that its rotary embedding rotates.
int64_t rotated_elements(const ModelConfig& config);
// The rotary embedding of layers of LayerRope::kGlobal, and whether some are kLocal.
Rope global_rope(const ModelConfig& config);
bool has_local_rope(const ModelConfig& config);
// Whether every micro-batch has a loss of the balance between experts.
inline bool has_balance_loss(const ModelConfig& config) {
  return config.experts && config.experts->router_aux_loss_coef > 0;
}

// Errors (kBadData; kBadConfig if valid but not supported) name the file, the field, what was expected and
// what was found. Unknown model_type, hidden_act, rope type, quantization_config, ... are rejected by name.
ModelConfig read_model_config(const std::filesystem::path& path);  // a config.json or a folder with one
ModelConfig parse_model_config(std::string_view json, const std::string& origin);

// The linear layers that "all-linear" means in this model: lora_module_names() in decoders.
std::vector<std::string> lora_module_names(const ModelConfig& config);

// The shapes of a named preset; kUsage listing the known names if there is none. vocab_size 0 = use the
// tokenizer's.
ModelConfig preset_config(const std::string& name);
std::vector<std::string> preset_names();

// The text of config.json (Hugging Face's layout): `config.json` updated with the other fields of `config`
// and with torch_dtype.
std::string write_model_config(const ModelConfig& config, const std::string& torch_dtype);
// The text of generation_config.json.
std::string write_generation_config(const ModelConfig& config);

}  // namespace tessera
