// ModelConfig -> config.json and generation_config.json.
#include <algorithm>

#include "base/error.h"
#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson token_ids(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

OrderedJson token_id(const std::optional<int64_t>& id) {
  return id ? OrderedJson(*id) : OrderedJson(nullptr);
}

// The parameters of rope scaling; null without scaling.
OrderedJson rope_scaling_json(const RopeScaling& scaling) {
  OrderedJson json;
  switch (scaling.type) {
    case RopeType::kDefault:
      return nullptr;
    case RopeType::kLinear:
      json["factor"] = scaling.factor;
      json["rope_type"] = "linear";
      return json;
    case RopeType::kLlama3:
      json["factor"] = scaling.factor;
      json["low_freq_factor"] = scaling.low_freq_factor;
      json["high_freq_factor"] = scaling.high_freq_factor;
      json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
      json["rope_type"] = "llama3";
      return json;
    case RopeType::kYarn:
    case RopeType::kLongRope:
      break;
  }
  TESSERA_CHECK(false, "rope type {}", static_cast<int>(scaling.type));
  return nullptr;
}

// Uses the spelling of transformers 5 if the original does, otherwise version 4's, which both understand.
void write_rope(const ModelConfig& config, OrderedJson& json) {
  const RopeType type = config.rope_scaling.type;
  if (type == RopeType::kYarn || type == RopeType::kLongRope) return;  // as in the file
  if (!json.contains("rope_parameters")) {
    json["rope_theta"] = config.rope_theta;
    json["rope_scaling"] = rope_scaling_json(config.rope_scaling);
    return;
  }
  OrderedJson rope = rope_scaling_json(config.rope_scaling);
  if (rope.is_null()) rope["rope_type"] = "default";
  rope["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = rope;
  json.erase("rope_scaling");
  json.erase("rope_theta");
}

void write_sliding_window(const ModelConfig& config, WindowLayers layers, OrderedJson& json) {
  if (layers == WindowLayers::kNone) return;
  const auto& windows = config.sliding_window;
  const int64_t window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  const bool after_first = layers == WindowLayers::kAfterFirst;
  const bool uniform = std::all_of(windows.begin(), windows.end(), [&](int64_t w) { return w == window; });
  // Qwen keeps the size of a window that is not in use.
  if (window != 0 || !after_first)
    json["sliding_window"] = window == 0 ? OrderedJson(nullptr) : OrderedJson(window);
  if (after_first) json["use_sliding_window"] = window != 0;
  if (window == 0 || (!after_first && uniform)) {
    json.erase("layer_types");
    return;
  }
  std::vector<std::string> types;
  for (const int64_t layer_window : windows)
    types.emplace_back(layer_window == 0 ? "full_attention" : "sliding_attention");
  json["layer_types"] = types;
}

// Of a file without them, as that of a preset; others keep theirs.
void write_mixture(const MixtureOfExperts& experts, const FamilyInfo& family, OrderedJson& json) {
  if (json.contains("num_experts_per_tok")) return;
  const auto write = [&](const char* name, const OrderedJson& value) {
    if (find_config_field(family.fields, name) != nullptr) json[name] = value;
  };
  write("num_experts", experts.num_experts);
  write("num_experts_per_tok", experts.num_experts_per_tok);
  write("moe_intermediate_size", experts.moe_intermediate_size);
  write("norm_topk_prob", experts.norm_topk_prob);
  write("decoder_sparse_step", 1);
  write("mlp_only_layers", OrderedJson::array());
  write("output_router_logits", experts.router_aux_loss_coef > 0);
  write("router_aux_loss_coef", experts.router_aux_loss_coef > 0 ? experts.router_aux_loss_coef : 0.001);
}

// Version 5 renamed the field and still reads the old name.
void write_dtype(const std::string& torch_dtype, OrderedJson& json) {
  json[json.contains("dtype") ? "dtype" : "torch_dtype"] = torch_dtype;
}

}  // namespace

std::string write_model_config(const ModelConfig& config, const std::string& torch_dtype) {
  OrderedJson json = config.json.empty() ? OrderedJson::object() : OrderedJson::parse(config.json);
  const FamilyInfo& family = family_info(config.family);
  json.erase("quantization_config");  // of weights that are saved as numbers
  json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  // The shape and the options are those of the file, unless it is a Llama made from nothing.
  const bool keeps_fields = config.encoder || config.encoder_decoder || family.refuses_unknown_fields;
  if (keeps_fields && !config.json.empty()) {
    json["vocab_size"] = config.vocab_size;
    if (!config.encoder) json["tie_word_embeddings"] = config.tie_word_embeddings;
    // Transformers 5 takes scale_decoder_outputs before tie_word_embeddings.
    if (config.encoder_decoder) json["scale_decoder_outputs"] = config.encoder_decoder->scale_decoder_outputs;
    write_dtype(torch_dtype, json);
    return json.dump(2) + "\n";
  }
  json["hidden_act"] = "silu";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family.has_attention_bias) json["attention_bias"] = config.o_bias;
  if (family.has_mlp_bias) json["mlp_bias"] = config.mlp_bias;
  if (config.experts) write_mixture(*config.experts, family, json);
  write_rope(config, json);
  write_sliding_window(config, family.window_layers, json);
  json["bos_token_id"] = token_id(config.bos_token_id);
  json["eos_token_id"] = token_ids(config.eos_token_ids);
  if (config.pad_token_id || json.contains("pad_token_id"))
    json["pad_token_id"] = token_id(config.pad_token_id);
  write_dtype(torch_dtype, json);
  return json.dump(2) + "\n";
}

std::string write_generation_config(const ModelConfig& config) {
  OrderedJson json;
  json["_from_model_config"] = true;
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = token_ids(config.eos_token_ids);
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  if (config.encoder_decoder) json["decoder_start_token_id"] = config.encoder_decoder->decoder_start_token_id;
  return json.dump(2) + "\n";
}

}  // namespace tessera
