// A family of models as data: what it reads of config.json, what it calls its tensors, and which names other
// programs have for its parts. Each is a source of families/, which computes nothing; docs/extending.md walks
// through one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "tensor/activation.h"

namespace tessera {

class JsonNode;

// The layers that have a sliding window if layer_types does not say.
enum class WindowLayers {
  kNone,
  kAll,
  kAfterFirst,  // with use_sliding_window, from max_window_layers on
  kIfUsed,      // all, with use_sliding_window
  kPattern      // all but every FamilyInfo::window_pattern-th
};

// A decoder alone, an encoder and a decoder that attends to it, or an encoder alone.
enum class FamilyKind { kDecoder, kEncoderDecoder, kEncoder };

// How a field of config.json is treated: a line of config_fields.tsv, t5_fields.tsv or encoder_fields.tsv, or
// one of a family alone.
struct ConfigField {
  std::string_view name;
  std::string_view use;    // "read", "ignored", "only", "other"
  std::string_view value;  // JSON
};

// The names of a decoder's tensors, without ".weight" and ".bias"; those of a layer follow "model.layers.N.".
struct DecoderNames {
  std::string embedding = "model.embed_tokens";
  std::vector<std::string> qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};  // or one
  std::string q_norm = "self_attn.q_norm";
  std::string k_norm = "self_attn.k_norm";
  std::string o = "self_attn.o_proj";
  std::vector<std::string> gate_up = {"mlp.gate_proj", "mlp.up_proj"};  // or one: gate first
  std::string down = "mlp.down_proj";
  // Of layers with experts: their router, and the matrices of expert E, which follow "EXPERTS.E.".
  std::string router = "mlp.gate";
  std::string experts = "mlp.experts";
  std::string expert_gate = "gate_proj";
  std::string expert_up = "up_proj";
  std::string expert_down = "down_proj";
  // The gate and up projections of all experts, fused into one tensor.
  std::string expert_gate_up = "gate_up_proj";
  std::string sinks = "self_attn.sinks";
  // The norms before attention and MLP, and those of their outputs (NormPlacement says which there are).
  std::string attention_norm = "input_layernorm";
  std::string attention_output_norm = "post_attention_layernorm";
  std::string mlp_norm = "post_attention_layernorm";
  std::string mlp_output_norm = "post_feedforward_layernorm";
  std::string final_norm = "model.norm";
  std::string lm_head = "lm_head";
};

// The defaults of absent fields are those of transformers' configuration classes.
struct FamilyInfo {
  std::string model_type = {};
  std::string architecture = {};
  FamilyKind kind = FamilyKind::kDecoder;
  // The classes of its modules, by which FSDP is told what to wrap: _no_split_modules of its PreTrainedModel,
  // and the others that hold parameters.
  std::string layer_class = {};
  std::vector<std::string> other_classes = {};
  // Models with images whose text_config describes this family, by their model_type: only their text part is
  // read, and written as a model of its own.
  std::vector<std::string> text_of = {};
  // What PEFT's "all-linear" means; empty: it depends on the model (lora_module_names()).
  std::vector<std::string> lora_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                           "gate_proj", "up_proj", "down_proj"};

  // Absent fields of a decoder.
  int64_t vocab_size = 0;           // 0: the field is required
  int64_t num_attention_heads = 0;  // the same
  int64_t num_key_value_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  // A partial_rotary_factor below 1 is understood; words for the rope type longrope.
  bool rotates_partly = false;
  std::string rope_aliases = {};
  // Rotary settings of a file that has none, as JSON; empty: no scaling.
  std::string absent_rope = {};
  // original_max_position_embeddings of the file itself; 0: max_position_embeddings.
  int64_t original_positions = 0;
  // Set: layers with a window have a rotary embedding of their own, with this base, or that of a field.
  std::optional<double> local_rope_theta = {};
  std::string local_theta_field = {};
  WindowLayers window_layers = WindowLayers::kNone;
  int64_t sliding_window = 0;  // 0: none
  int64_t window_pattern = 0;
  std::optional<int64_t> bos_token_id = {};
  std::optional<int64_t> eos_token_id = {};
  std::optional<int64_t> pad_token_id = {};
  bool tie_word_embeddings = false;

  // What a decoder always has, or by a field.
  bool has_attention_bias = false;  // attention_bias says whether q, k, v and o have one
  bool has_qkv_bias = false;        // q, k and v always have one
  bool has_mlp_bias = false;        // mlp_bias says whether
  bool has_qk_norm = false;
  bool qk_norm_whole = false;  // ModelConfig has what they mean
  NormPlacement norm_placement = NormPlacement::kBefore;
  std::string norm_eps_field = "rms_norm_eps";
  std::string activation_field = "hidden_act";
  // Its values, the first of which is that of an absent field.
  std::vector<std::pair<std::string, Activation>> activations = {{"silu", Activation::kGatedSilu},
                                                                 {"swish", Activation::kGatedSilu}};
  // Fields that it treats unlike config_fields.tsv.
  std::vector<ConfigField> fields = {};
  // Whether an unknown field is an error, rather than a warning.
  bool refuses_unknown_fields = true;
  // Reads them into the options of `config`, whose other fields are known by then. Null: there are none.
  void (*read)(const JsonNode& fields, ModelConfig& config) = nullptr;
  DecoderNames names = {};

  // llama.cpp's name of it, as convert_hf_to_gguf.py writes it; empty: it has none.
  std::string gguf_architecture = {};
};

std::span<const FamilyInfo> model_families();
// By ModelConfig::family, its model_type.
const FamilyInfo& family_info(const std::string& family);

// What becomes of every field that a family knows.
std::vector<ConfigField> config_fields(const FamilyInfo& family);
// Null for a name that no line has.
const ConfigField* find_config_field(const std::vector<ConfigField>& fields, std::string_view name);

}  // namespace tessera
