// config.json -> ModelConfig. Defaults of absent fields are those of transformers' configuration classes
// (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config), in the spelling of version 4 and of version 5.
#include "formats/huggingface/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/huggingface/config_reading.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxInt32 = kMaxConfigInteger;

// One field of every family: "llama, mistral, ...".
std::string known_names(std::string FamilyInfo::*field) {
  std::vector<std::string> names;
  for (const FamilyInfo& family : model_families()) names.push_back(family.*field);
  return fmt::format("{}", fmt::join(names, ", "));
}

const FamilyInfo* find_family(std::string FamilyInfo::*field, const std::string& name) {
  for (const FamilyInfo& family : model_families()) {
    if (family.*field == name) return &family;
  }
  return nullptr;
}

// Transformers goes by model_type and loads the weights it finds for it: a backbone saved on its own
// (LlamaModel), or one with the head of another task. Only another family's name contradicts it.
void check_architecture(const JsonNode& architectures, const FamilyInfo& family) {
  if (architectures.is_null()) return;
  const std::string backbone = family.architecture.substr(0, family.architecture.find("For")) + "Model";
  std::vector<std::string> others;
  for (const JsonNode& name : architectures.list()) {
    if (name.string() == family.architecture || name.string() == backbone) continue;
    others.push_back(name.string());
    if (find_family(&FamilyInfo::architecture, name.string()) == nullptr) continue;
    fail(ExitCode::kBadConfig,
         "{}: field 'architectures': '{}' is not supported with model_type '{}', expected {}",
         architectures.origin(), printable(name.string()), family.model_type, family.architecture);
  }
  if (!others.empty())
    log_warning("{}: field 'architectures': {} has no effect: model_type '{}' decides, and the model is a {}",
                architectures.origin(), printable(fmt::format("{}", fmt::join(others, ", "))),
                family.model_type, family.architecture);
}

// The family by model_type, or without one by architectures.
const FamilyInfo& read_family(const JsonNode& fields) {
  const JsonNode model_type = fields["model_type"];
  const FamilyInfo* by_type =
      model_type.is_null() ? nullptr : find_family(&FamilyInfo::model_type, model_type.string());
  if (!model_type.is_null() && by_type == nullptr)
    fail(ExitCode::kBadConfig, "{}: field 'model_type': '{}' is not supported, expected one of {}",
         fields.origin(), printable(model_type.string()), known_names(&FamilyInfo::model_type));
  const JsonNode architectures = fields["architectures"];
  if (by_type != nullptr) {
    check_architecture(architectures, *by_type);
    return *by_type;
  }
  if (architectures.is_null()) model_type.expected("the model's family");
  if (!architectures.is_list() || architectures.json().size() != 1 || !architectures[0].is_string())
    architectures.expected("a list of one name");
  const std::string& name = architectures[0].string();
  const FamilyInfo* family = find_family(&FamilyInfo::architecture, name);
  if (family == nullptr)
    fail(ExitCode::kBadConfig, "{}: field 'architectures': '{}' is not supported, expected {}",
         fields.origin(), printable(name), known_names(&FamilyInfo::architecture));
  return *family;
}

// A field that would change what the model computes may only have its neutral value.
void refuse_unsupported(const JsonNode& fields, const FamilyInfo& family) {
  for (const ConfigField& field : config_fields(family.kind)) {
    if (field.use != "only") continue;
    const Json& value = fields[field.name].json();
    const Json neutral = Json::parse(field.value);
    if (value.is_null() || value == neutral) continue;
    fail(ExitCode::kBadConfig, "{}: field '{}': {} is not supported{}", fields.origin(), field.name,
         printable(value.dump()), neutral.is_null() ? "" : fmt::format(", expected {}", field.value));
  }
}

void check_activation_and_biases(const JsonNode& fields, const FamilyInfo& family) {
  const std::string activation = fields["hidden_act"].string_or("silu");
  if (activation != "silu" && activation != "swish")
    fail(ExitCode::kBadConfig, "{}: field 'hidden_act': '{}' is not supported, expected 'silu'",
         fields.origin(), printable(activation));
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

// An unknown field of a decoder is a warning, but a likely typo is an error: the default would silently be
// used instead. Other kinds of families refuse what they do not know.
void check_unknown_fields(const JsonNode& fields, FamilyKind kind) {
  for (const auto& [name, value] : fields.object().items()) {
    if (find_config_field(name, kind) != nullptr) continue;
    for (const ConfigField& field : config_fields(kind)) {
      if (field.use == "read" && name.size() <= field.name.size() + 2 &&
          edit_distance(name, std::string(field.name)) <= 2 && !fields.contains(field.name))
        fail(ExitCode::kBadConfig, "{}: unknown field '{}': did you mean '{}'?", fields.origin(),
             printable(name), field.name);
    }
    if (kind != FamilyKind::kDecoder && !name.starts_with("_"))
      fail(ExitCode::kBadConfig, "{}: field '{}' is not supported", fields.origin(), printable(name));
    log_warning("{}: field '{}' is unknown and has no effect", fields.origin(), printable(name));
  }
}

void read_sizes(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  config.vocab_size = read_size(fields["vocab_size"], std::nullopt, kMaxInt32);
  config.hidden_size = read_size(fields["hidden_size"], std::nullopt, 1 << 20);
  config.intermediate_size = read_size(fields["intermediate_size"], std::nullopt, 1 << 22);
  config.num_hidden_layers = read_size(fields["num_hidden_layers"], std::nullopt, 10'000);
  config.num_attention_heads = read_size(fields["num_attention_heads"], std::nullopt, 1 << 16);
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
  config.rms_norm_eps = read_positive(fields["rms_norm_eps"], 1e-6, 1);
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

// Rejects unsupported rope types by name and reads the parameters of the others.
RopeScaling read_rope_scaling(const JsonNode& fields, const JsonNode& rope, int64_t max_positions) {
  RopeScaling scaling;
  const JsonNode named = rope[rope["rope_type"].is_null() ? "type" : "rope_type"];
  const std::string type = named.string_or("default");
  if (type != "default" && type != "linear" && type != "llama3")
    fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected default, linear or llama3",
         rope.origin(), named.path(), printable(type));
  for (const auto& [key, value] : rope.object().items()) {
    const ConfigField* field = find_config_field("rope." + key);
    if (!value.is_null() && field != nullptr && field->use == "other")
      log_warning("{}: field '{}' has no effect for the rope type '{}'", rope.origin(), rope[key].path(),
                  type);
  }
  if (type == "default") return scaling;
  const auto required = [&](const char* field) {
    const double value = rope[field].number_or(std::nan(""));
    if (!(value >= 1e-9 && value <= 1e9)) rope[field].expected("a number from 1e-9 to 1e9");
    return value;
  };
  scaling.type = type == "linear" ? RopeType::kLinear : RopeType::kLlama3;
  scaling.factor = required("factor");
  if (scaling.type == RopeType::kLinear) return scaling;
  scaling.low_freq_factor = required("low_freq_factor");
  scaling.high_freq_factor = required("high_freq_factor");
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    rope["high_freq_factor"].expected(fmt::format("more than low_freq_factor = {}", scaling.low_freq_factor));
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const JsonNode original = fields[kOriginal];
  scaling.original_max_position_embeddings =
      read_size(original.is_null() ? rope[kOriginal] : original, max_positions, kMaxInt32);
  return scaling;
}

struct Rope {
  double theta;
  RopeScaling scaling;

  bool operator==(const Rope&) const = default;
};

// Reads one of the two forms: version 5 writes rope_parameters with rope_theta inside it, version 4
// rope_scaling next to rope_theta.
Rope read_rope_form(const JsonNode& fields, const char* name, int64_t max_positions) {
  constexpr double kMaxTheta = 1e18;
  const double theta = read_positive(fields["rope_theta"], 10000, kMaxTheta);
  const JsonNode rope = fields[name];
  if (rope.is_null()) return {theta, {}};
  for (const auto& [key, value] : rope.object().items()) {
    if (!value.is_null() && find_config_field("rope." + key) == nullptr)
      fail(ExitCode::kBadConfig, "{}: field '{}' is not supported", fields.origin(),
           printable(rope[key].path()));
  }
  if (rope["partial_rotary_factor"].number_or(1) != 1)
    fail(ExitCode::kBadConfig, "{}: field '{}.partial_rotary_factor' is not supported, expected 1",
         fields.origin(), name);
  return {read_positive(rope["rope_theta"], theta, kMaxTheta),
          read_rope_scaling(fields, rope, max_positions)};
}

// Transformers takes rope_scaling if it is not empty.
void read_rope(const JsonNode& fields, ModelConfig& config) {
  const JsonNode scaling = fields["rope_scaling"];
  const bool has_scaling = !scaling.is_null() && !(scaling.is_object() && scaling.json().empty());
  const bool has_parameters = !fields["rope_parameters"].is_null();
  const auto read = [&](const char* name) {
    return read_rope_form(fields, name, config.max_position_embeddings);
  };
  const Rope rope = read(has_scaling ? "rope_scaling" : "rope_parameters");
  if (has_scaling && has_parameters && rope != read("rope_parameters"))
    fail(ExitCode::kBadData,
         "{}: fields 'rope_scaling' and 'rope_parameters' contradict each other: keep one", fields.origin());
  const double theta = fields["rope_theta"].number_or(rope.theta);
  if (theta != rope.theta)
    log_warning("{}: field 'rope_theta': {} has no effect beside {} with the other settings of RoPE",
                fields.origin(), theta, rope.theta);
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
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

void read_sliding_window(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  const int64_t num_layers = config.num_hidden_layers;
  const bool takes_types = family.window_layers != WindowLayers::kNone;
  const bool after_first = family.window_layers == WindowLayers::kAfterFirst;
  // null means none, even if the family has one when the field is absent.
  const int64_t absent = fields.contains("sliding_window") ? 0 : family.sliding_window;
  int64_t window = read_size(fields["sliding_window"], absent, kMaxInt32);
  if (after_first && !fields["use_sliding_window"].boolean_or(false)) window = 0;
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
  config.pad_token_id = read("pad_token_id", std::nullopt);
  const JsonNode eos = fields["eos_token_id"];
  if (!eos.is_list()) {
    if (const auto id = read("eos_token_id", family.eos_token_id)) config.eos_token_ids.push_back(*id);
    return;
  }
  for (const JsonNode& node : eos.list()) {
    if (const auto id = read_token(node, config.vocab_size)) config.eos_token_ids.push_back(*id);
  }
}

namespace {

ModelConfig read_decoder_config(const JsonNode& fields, const FamilyInfo& family) {
  check_activation_and_biases(fields, family);
  ModelConfig config;
  config.family = family.family;
  read_sizes(fields, family, config);
  check_total(fields, config);
  read_rope(fields, config);
  read_sliding_window(fields, family, config);
  read_tokens(fields, family, config);
  config.tie_word_embeddings = fields["tie_word_embeddings"].boolean_or(false);
  config.o_bias = family.has_attention_bias && fields["attention_bias"].boolean_or(false);
  config.qkv_bias = config.o_bias || family.has_qkv_bias;
  config.mlp_bias = family.has_mlp_bias && fields["mlp_bias"].boolean_or(false);
  config.qk_norm = family.has_qk_norm;
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& origin) {
  const Json root = parse_json(json, origin);
  const JsonNode fields(root, origin);
  const FamilyInfo& family = read_family(fields);
  refuse_unsupported(fields, family);
  check_unknown_fields(fields, family.kind);
  const auto read = family.kind == FamilyKind::kEncoderDecoder ? read_t5_config
                    : family.kind == FamilyKind::kEncoder      ? read_encoder_config
                                                               : read_decoder_config;
  ModelConfig config = read(fields, family);
  config.json = json;
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, error)) {
    file /= "config.json";
    if (!std::filesystem::exists(file, error) && !error) {
      const bool is_adapter = std::filesystem::exists(path / kAdapterConfigName, error);
      fail(ExitCode::kNoInput, "{}: expected config.json in a Hugging Face model folder, found none{}",
           path.native(),
           is_adapter ? " (a LoRA adapter: name its base model here, and the adapter as adapter_name_or_path)"
                      : note_on_gguf(path));
    }
  } else if (const FileKind kind = kind_of_file(path); !kind.is_json) {
    fail_not_a_model(path, kind);
  }
  return parse_model_config(read_text_file(file, kMaxConfigBytes), file.native());
}

}  // namespace tessera
