// config.json -> ModelConfig. Defaults of absent fields are those of transformers' configuration classes
// (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config), in the spelling of version 4 and of version 5.
#include "formats/huggingface/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/huggingface/hub_name.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

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

// The family by model_type, architectures or both, which must agree.
const FamilyInfo& read_family(const JsonFields& fields) {
  const auto model_type = fields.string("model_type");
  const FamilyInfo* by_type = model_type ? find_family(&FamilyInfo::model_type, *model_type) : nullptr;
  if (model_type && by_type == nullptr)
    fail(ExitCode::kBadConfig, "{}: field 'model_type': '{}' is not supported, expected one of {}",
         fields.origin(), printable(*model_type), known_names(&FamilyInfo::model_type));
  const Json* architectures = fields.find("architectures");
  if (architectures == nullptr) {
    if (by_type == nullptr) fields.fail_expected("model_type", "the model's family");
    return *by_type;
  }
  if (!architectures->is_array() || architectures->size() != 1 || !architectures->front().is_string())
    fields.fail_expected("architectures", "a list of one name");
  const auto name = architectures->front().get<std::string>();
  const FamilyInfo* by_architecture = find_family(&FamilyInfo::architecture, name);
  if (by_architecture == nullptr || (by_type != nullptr && by_type != by_architecture))
    fail(ExitCode::kBadConfig, "{}: field 'architectures': '{}' is not supported{}, expected {}",
         fields.origin(), printable(name),
         by_type != nullptr ? fmt::format(" with model_type '{}'", by_type->model_type) : "",
         by_type != nullptr ? by_type->architecture : known_names(&FamilyInfo::architecture));
  return *by_architecture;
}

// A field that would change what the model computes may only have its neutral value.
void refuse_unsupported(const JsonFields& fields, const FamilyInfo& family) {
  for (const UnsupportedField& unsupported : unsupported_fields()) {
    const Json* value = fields.find(unsupported.name);
    if (value == nullptr) continue;
    const Json neutral = Json::parse(unsupported.neutral);
    if (*value == neutral) continue;
    fail(ExitCode::kBadConfig, "{}: field '{}': {} is not supported{}", fields.origin(), unsupported.name,
         printable(value->dump()),
         neutral.is_null() ? "" : fmt::format(", expected {}", unsupported.neutral));
  }
  const std::string activation = fields.string("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish")
    fail(ExitCode::kBadConfig, "{}: field 'hidden_act': '{}' is not supported, expected 'silu'",
         fields.origin(), printable(activation));
  // Transformers has no such bias in these families and ignores the fields.
  const auto warn_without_effect = [&](const char* name) {
    if (fields.boolean(name).value_or(false))
      log_warning("{}: field '{}' has no effect for model_type '{}'", fields.origin(), name,
                  family.model_type);
  };
  if (family.family != ModelFamily::kLlama) warn_without_effect("mlp_bias");
  if (family.family == ModelFamily::kMistral) warn_without_effect("attention_bias");
  if (family.family == ModelFamily::kQwen2 && fields.boolean("attention_bias") == false)
    fail(ExitCode::kBadConfig,
         "{}: field 'attention_bias': false is not supported for model_type 'qwen2', whose q, k and v "
         "projections always have a bias",
         fields.origin());
}

// Unknown fields are a warning, but a likely typo is an error: the default would silently be used instead.
void check_unknown_fields(const JsonFields& fields) {
  for (const auto& [name, value] : fields.object().items()) {
    if (is_understood_field(name) || is_harmless_field(name)) continue;
    for (const std::string& understood : understood_fields()) {
      if (name.size() <= understood.size() + 2 && edit_distance(name, understood) <= 2 &&
          !fields.object().contains(understood))
        fail(ExitCode::kBadConfig, "{}: unknown field '{}': did you mean '{}'?", fields.origin(),
             printable(name), understood);
    }
    log_warning("{}: field '{}' is unknown and has no effect", fields.origin(), printable(name));
  }
}

int64_t read_size(const JsonFields& fields, const std::string& name, std::optional<int64_t> absent,
                  int64_t max) {
  const std::optional<int64_t> given = fields.integer(name);
  if (!given && !absent) fields.fail_expected(name, fmt::format("an integer from 1 to {}", max));
  if (given && (*given < 1 || *given > max))
    fields.fail_expected(name, fmt::format("an integer from 1 to {}", max));
  return given ? *given : *absent;
}

double read_positive(const JsonFields& fields, const std::string& name, double absent, double max) {
  const double value = fields.number(name).value_or(absent);
  if (!(value > 0 && value <= max))
    fields.fail_expected(name, fmt::format("a number above 0, at most {}", max));
  return value;
}

void read_sizes(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  config.vocab_size = read_size(fields, "vocab_size", std::nullopt, kMaxInt32);
  config.hidden_size = read_size(fields, "hidden_size", std::nullopt, 1 << 20);
  config.intermediate_size = read_size(fields, "intermediate_size", std::nullopt, 1 << 22);
  config.num_hidden_layers = read_size(fields, "num_hidden_layers", std::nullopt, 10'000);
  config.num_attention_heads = read_size(fields, "num_attention_heads", std::nullopt, 1 << 16);
  // null means as many as query heads in every family; if absent, the family's default applies.
  const int64_t absent_kv_heads =
      fields.object().contains("num_key_value_heads") || family.num_key_value_heads == 0
          ? config.num_attention_heads
          : family.num_key_value_heads;
  config.num_key_value_heads = read_size(fields, "num_key_value_heads", absent_kv_heads, 1 << 16);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    fail(ExitCode::kBadData,
         "{}: field 'num_attention_heads': expected a multiple of num_key_value_heads = {}, found {}",
         fields.origin(), config.num_key_value_heads, config.num_attention_heads);
  const bool head_dim_follows = !fields.has("head_dim") && family.head_dim == 0;
  if (head_dim_follows && config.hidden_size % config.num_attention_heads != 0)
    fail(ExitCode::kBadData,
         "{}: field 'hidden_size': expected a multiple of num_attention_heads = {} when head_dim is not "
         "given, found {}",
         fields.origin(), config.num_attention_heads, config.hidden_size);
  const int64_t absent_head_dim =
      family.head_dim != 0 ? family.head_dim : config.hidden_size / config.num_attention_heads;
  config.head_dim = read_size(fields, "head_dim", absent_head_dim, 1 << 16);
  if (config.head_dim % 2 != 0)
    fail(ExitCode::kBadData, "{}: field 'head_dim': expected an even number for rotary embeddings, found {}",
         fields.origin(), config.head_dim);
  config.max_position_embeddings =
      read_size(fields, "max_position_embeddings", family.max_position_embeddings, kMaxInt32);
  config.rms_norm_eps = read_positive(fields, "rms_norm_eps", 1e-6, 1);
  config.initializer_range = fields.number("initializer_range").value_or(0.02);
  if (!(config.initializer_range >= 0 && config.initializer_range <= 100))
    fields.fail_expected("initializer_range", "a number from 0 to 100");
}

// Each size alone may be large, but element and byte counts of the whole model must not overflow.
void check_total(const JsonFields& fields, const ModelConfig& config) {
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
RopeScaling read_rope_scaling(const JsonFields& rope) {
  RopeScaling scaling;
  const std::string type = rope.string("rope_type").value_or(rope.string("type").value_or("default"));
  const char* name = rope.has("rope_type") ? "rope_type" : "type";
  if (type == "default") return scaling;
  if (type != "linear" && type != "llama3")
    fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported, expected default, linear or llama3",
         rope.origin(), rope.field(name), printable(type));
  const auto required = [&](const char* field, double min) {
    const std::optional<double> value = rope.number(field);
    if (!value || !(*value >= min && *value <= 1e9))
      rope.fail_expected(field, fmt::format("a number from {} to 1e9", min));
    return *value;
  };
  scaling.type = type == "linear" ? RopeType::kLinear : RopeType::kLlama3;
  scaling.factor = required("factor", 1);
  if (scaling.type == RopeType::kLinear) return scaling;
  scaling.low_freq_factor = required("low_freq_factor", 1e-9);
  scaling.high_freq_factor = required("high_freq_factor", 1e-9);
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    rope.fail_expected("high_freq_factor",
                       fmt::format("more than low_freq_factor = {}", scaling.low_freq_factor));
  scaling.original_max_position_embeddings =
      read_size(rope, "original_max_position_embeddings", std::nullopt, kMaxInt32);
  return scaling;
}

void read_rope(const JsonFields& fields, ModelConfig& config) {
  constexpr double kMaxTheta = 1e18;
  config.rope_theta = read_positive(fields, "rope_theta", 10000, kMaxTheta);
  // Version 5 writes rope_parameters with rope_theta inside it, version 4 rope_scaling next to rope_theta.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) fields.fail_expected(name, "an object");
    const JsonFields rope(*value, fields.origin(), std::string(name) + ".");
    for (const auto& [key, unused] : value->items()) {
      if (!is_rope_field(key))
        fail(ExitCode::kBadConfig, "{}: field '{}' is not supported", fields.origin(),
             printable(rope.field(key)));
    }
    if (rope.number("partial_rotary_factor").value_or(1) != 1)
      fail(ExitCode::kBadConfig, "{}: field '{}' is not supported, expected 1", fields.origin(),
           rope.field("partial_rotary_factor"));
    config.rope_theta = read_positive(rope, "rope_theta", config.rope_theta, kMaxTheta);
    config.rope_scaling = read_rope_scaling(rope);
  }
  if (fields.has("rope_scaling") && fields.has("rope_parameters") &&
      *fields.find("rope_scaling") != *fields.find("rope_parameters"))
    fail(ExitCode::kBadData,
         "{}: fields 'rope_scaling' and 'rope_parameters' contradict each other: keep one", fields.origin());
}

// Which layers have the window, if layer_types lists them.
std::optional<std::vector<bool>> read_layer_types(const JsonFields& fields, int64_t num_layers) {
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers))
    fields.fail_expected("layer_types", fmt::format("a list of num_hidden_layers = {} names", num_layers));
  std::vector<bool> windowed;
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      fail(ExitCode::kBadConfig,
           "{}: field 'layer_types': {} is not supported, expected full_attention or sliding_attention",
           fields.origin(), printable(type.dump()));
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

void read_sliding_window(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  const int64_t num_layers = config.num_hidden_layers;
  const bool qwen = family.family == ModelFamily::kQwen2 || family.family == ModelFamily::kQwen3;
  const bool given_null = fields.object().contains("sliding_window") && !fields.has("sliding_window");
  int64_t window = given_null || family.sliding_window == 0
                       ? read_size(fields, "sliding_window", 0, kMaxInt32)
                       : read_size(fields, "sliding_window", family.sliding_window, kMaxInt32);
  if (qwen && !fields.boolean("use_sliding_window").value_or(false)) window = 0;
  if (family.family == ModelFamily::kLlama && window != 0) {
    log_warning("{}: field 'sliding_window' has no effect for model_type 'llama'", fields.origin());
    window = 0;
  }
  config.sliding_window.assign(static_cast<size_t>(num_layers), window);
  if (qwen) {
    // In Qwen the first max_window_layers layers have no window.
    const int64_t full_layers = fields.integer("max_window_layers").value_or(28);
    for (int64_t layer = 0; layer < std::min(full_layers, num_layers); ++layer)
      config.sliding_window[static_cast<size_t>(layer)] = 0;
  }
  const auto windowed = read_layer_types(fields, num_layers);
  for (size_t layer = 0; windowed && layer < windowed->size(); ++layer) {
    const bool has_window = (*windowed)[layer];
    if ((has_window && window == 0) || (!has_window && window != 0 && !qwen))
      fail(ExitCode::kBadData, "{}: field 'layer_types': layer {} is {} but sliding_window is {}",
           fields.origin(), layer, has_window ? "sliding_attention" : "full_attention",
           window == 0 ? "not in use" : std::to_string(window));
    config.sliding_window[layer] = has_window ? window : 0;
  }
}

void check_token(const JsonFields& fields, const char* name, int64_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    fail(ExitCode::kBadData, "{}: field '{}': expected an id from 0 to vocab_size - 1 = {}, found {}",
         fields.origin(), name, vocab_size - 1, id);
}

void read_tokens(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config) {
  const auto read = [&](const char* name, std::optional<int64_t> absent) {
    const bool given = fields.object().contains(name);
    std::optional<int64_t> id = given ? fields.integer(name) : absent;
    // The first Llama conversions wrote -1 for none.
    if (id == -1) id.reset();
    if (given && id) check_token(fields, name, *id, config.vocab_size);
    return id && *id < config.vocab_size ? id : std::nullopt;
  };
  config.bos_token_id = read("bos_token_id", family.bos_token_id);
  config.pad_token_id = read("pad_token_id", std::nullopt);
  const Json* eos = fields.find("eos_token_id");
  if (eos == nullptr || !eos->is_array()) {
    if (const auto id = read("eos_token_id", family.eos_token_id)) config.eos_token_ids.push_back(*id);
    return;
  }
  for (const Json& id : *eos) {
    if (!id.is_number_integer()) fields.fail_expected("eos_token_id", "an integer or a list of integers");
    check_token(fields, "eos_token_id", id.get<int64_t>(), config.vocab_size);
    config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& origin) {
  const Json root = parse_json(json, origin);
  if (!root.is_object())
    fail(ExitCode::kBadData, "{}: expected an object, found {}", origin, found_text(root));
  const JsonFields fields(root, origin);
  const FamilyInfo& family = read_family(fields);
  refuse_unsupported(fields, family);
  check_unknown_fields(fields);
  ModelConfig config;
  config.family = family.family;
  read_sizes(fields, family, config);
  check_total(fields, config);
  read_rope(fields, config);
  read_sliding_window(fields, family, config);
  read_tokens(fields, family, config);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  const bool attention_bias = fields.boolean("attention_bias").value_or(false);
  const bool takes_attention_bias =
      config.family == ModelFamily::kLlama || config.family == ModelFamily::kQwen3;
  config.o_bias = takes_attention_bias && attention_bias;
  config.qkv_bias = config.o_bias || config.family == ModelFamily::kQwen2;
  config.mlp_bias = config.family == ModelFamily::kLlama && fields.boolean("mlp_bias").value_or(false);
  config.qk_norm = config.family == ModelFamily::kQwen3;
  config.json = json;
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  refuse_hub_name(path);
  std::error_code error;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, error)) {
    file /= "config.json";
    if (!std::filesystem::exists(file, error) && !error)
      fail(ExitCode::kNoInput, "{}: expected config.json in a Hugging Face model folder, found none{}",
           path.native(), note_on_gguf(path));
  } else if (const FileKind kind = kind_of_file(path); !kind.is_json) {
    fail_not_a_model(path, kind);
  }
  return parse_model_config(read_text_file(file, kMaxConfigBytes), file.native());
}

}  // namespace tessera
