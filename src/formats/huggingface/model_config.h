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

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3, kT5, kBert, kXlmRoberta, kModernBert };

enum class RopeType { kDefault, kLinear, kLlama3 };

struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1;
  double low_freq_factor = 1;                       // llama3
  double high_freq_factor = 4;                      // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3

  bool operator==(const RopeScaling&) const = default;
};

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

  bool operator==(const EncoderOnly&) const = default;
};

// Fields spelled as in Hugging Face's Llama; those of other families that mean the same are read into them.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
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
  bool qk_norm = false;  // Qwen3
  Activation activation = Activation::kGatedSilu;
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
};

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
