// The rotary embedding of decoders in config.json, in the spelling of version 4 of transformers and of
// version 5.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/config_reading.h"

namespace tessera {
namespace {

constexpr const char* kOriginalPositions = "original_max_position_embeddings";

// What reading takes: the file, its family, and the settings so far.
struct RopeReader {
  const JsonNode& fields;
  const FamilyInfo& family;
  const std::vector<ConfigField> known;
  ModelConfig& config;
  bool is_local = false;  // of a dictionary by kinds of layers

  RopeScaling read_scaling(const JsonNode& rope) const;
  Rope read(const JsonNode& rope, double theta) const;
  Rope read_form(const char* name);
  void check_keys(const JsonNode& rope, const std::string& path) const;
  double rotary_share(const JsonNode& rope) const;

 private:
  void read_yarn(const JsonNode& rope, RopeScaling& scaling) const;
  void read_longrope(const JsonNode& rope, RopeScaling& scaling) const;
  double attention_factor(const JsonNode& rope, double absent) const;
};

double required(const JsonNode& rope, const char* field) {
  const double value = rope[field].number_or(std::nan(""));
  if (!(value >= 1e-9 && value <= 1e9)) rope[field].expected("a number from 1e-9 to 1e9");
  return value;
}

// Transformers moves original_max_position_embeddings into the dictionary, unless it is there by kinds.
int64_t original_positions(const RopeReader& reader, const JsonNode& rope) {
  const JsonNode original = reader.fields[kOriginalPositions];
  return read_size(original.is_null() || reader.is_local ? rope[kOriginalPositions] : original,
                   reader.family.original_positions != 0 && !reader.is_local
                       ? reader.family.original_positions
                       : reader.config.max_position_embeddings,
                   kMaxConfigInteger);
}

void read_llama3(const JsonNode& rope, RopeScaling& scaling) {
  scaling.low_freq_factor = required(rope, "low_freq_factor");
  scaling.high_freq_factor = required(rope, "high_freq_factor");
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    rope["high_freq_factor"].expected(fmt::format("more than low_freq_factor = {}", scaling.low_freq_factor));
}

double RopeReader::attention_factor(const JsonNode& rope, double absent) const {
  const double value = rope["attention_factor"].number_or(absent);
  if (!(value > 0 && value <= 1e6)) rope["attention_factor"].expected("a number above 0, at most 1e6");
  return value;
}

// transformers' _compute_yarn_parameters
void RopeReader::read_yarn(const JsonNode& rope, RopeScaling& scaling) const {
  const auto magnitude = [&](double weight) {
    return scaling.factor <= 1 ? 1 : 0.1 * weight * std::log(scaling.factor) + 1;
  };
  const double mscale = rope["mscale"].number_or(0), all_dim = rope["mscale_all_dim"].number_or(0);
  for (const char* name : {"mscale", "mscale_all_dim"}) {
    const double value = rope[name].number_or(0);
    if (!(value >= 0 && value <= 1e3)) rope[name].expected("a number from 0 to 1000");
  }
  scaling.attention_factor = attention_factor(
      rope, mscale != 0 && all_dim != 0 ? magnitude(mscale) / magnitude(all_dim) : magnitude(1));
  const auto beta = [&](const char* name, double absent) {
    const double value = rope[name].number_or(absent);
    if (!(value >= 0 && value <= 1e6)) rope[name].expected("a number from 0 to 1e6");
    return value == 0 ? absent : value;
  };
  scaling.mscale_all_dim = all_dim;
  scaling.beta_fast = beta("beta_fast", 32);
  scaling.beta_slow = beta("beta_slow", 1);
  scaling.truncate = rope["truncate"].boolean_or(true);
}

// transformers' _compute_longrope_parameters
void RopeReader::read_longrope(const JsonNode& rope, RopeScaling& scaling) const {
  const auto factors = [&](const char* name) {
    std::vector<double> values;
    const int64_t wanted = rotated_elements(config) / 2;
    if (!rope[name].is_list() || std::ssize(rope[name].json()) != wanted)
      rope[name].expected(
          fmt::format("a list of {} numbers, half of the rotated elements of a head", wanted));
    for (const JsonNode& value : rope[name].list()) values.push_back(value.number_between(1e-9, 1e9));
    return values;
  };
  scaling.short_factor = factors("short_factor");
  scaling.long_factor = factors("long_factor");
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double factor = rope["factor"].is_null()
                            ? static_cast<double>(config.max_position_embeddings) / original
                            : required(rope, "factor");
  scaling.factor = factor;
  if (original <= 1) rope[kOriginalPositions].expected("more than 1");
  scaling.attention_factor =
      attention_factor(rope, factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
}

struct RopeWord {
  std::string_view word;
  RopeType type;
  std::string_view keys;  // beside rope_theta: names separated by spaces
};
constexpr RopeWord kRopeWords[] = {
    {"default", RopeType::kDefault, ""},
    {"linear", RopeType::kLinear, "factor"},
    {"llama3", RopeType::kLlama3, "factor low_freq_factor high_freq_factor original_max_position_embeddings"},
    {"yarn", RopeType::kYarn,
     "factor original_max_position_embeddings attention_factor beta_fast beta_slow mscale mscale_all_dim "
     "truncate"},
    {"longrope", RopeType::kLongRope,
     "factor original_max_position_embeddings attention_factor short_factor long_factor"},
};

bool has_word(std::string_view words, std::string_view word) {
  for (const std::string& part : split(words, ' ')) {
    if (part == word) return true;
  }
  return false;
}

// Rejects unsupported rope types by name and reads the parameters of the others.
RopeScaling RopeReader::read_scaling(const JsonNode& rope) const {
  RopeScaling scaling;
  const JsonNode named = rope[rope["rope_type"].is_null() ? "type" : "rope_type"];
  std::string type = named.string_or("default");
  if (type == "dynamic")
    fail(ExitCode::kBadConfig,
         "{}: field '{}': 'dynamic' is not supported: its frequencies depend on the longest row that a "
         "process has seen, so that results would depend on the order of rows; expected default, linear, "
         "llama3, yarn or longrope",
         rope.origin(), named.path());
  // Phi-3's first files; its class knows no other scaling.
  if (has_word(family.rope_aliases, type)) type = "longrope";
  const auto* word = std::ranges::find(kRopeWords, type, &RopeWord::word);
  if (word == std::end(kRopeWords))
    fail(ExitCode::kBadConfig,
         "{}: field '{}': '{}' is not supported, expected default, linear, llama3, yarn or longrope",
         rope.origin(), named.path(), printable(type));
  for (const auto& [key, value] : rope.object().items()) {
    const ConfigField* field = find_config_field(known, "rope." + key);
    if (!value.is_null() && field != nullptr && field->use == "other" && !has_word(word->keys, key))
      log_warning("{}: field '{}' has no effect for the rope type '{}'", rope.origin(), rope[key].path(),
                  type);
  }
  scaling.type = word->type;
  if (scaling.type == RopeType::kDefault) return scaling;
  if (scaling.type != RopeType::kLongRope) scaling.factor = required(rope, "factor");
  if (scaling.type == RopeType::kLinear) return scaling;
  if (scaling.type == RopeType::kLlama3) read_llama3(rope, scaling);
  scaling.original_max_position_embeddings = original_positions(*this, rope);
  if (scaling.type == RopeType::kYarn) read_yarn(rope, scaling);
  if (scaling.type == RopeType::kLongRope) read_longrope(rope, scaling);
  return scaling;
}

void RopeReader::check_keys(const JsonNode& rope, const std::string& path) const {
  for (const auto& [key, value] : rope.object().items()) {
    if (!value.is_null() && find_config_field(known, "rope." + key) == nullptr)
      fail(ExitCode::kBadConfig, "{}: field '{}' is not supported", fields.origin(),
           printable(path.empty() ? rope[key].path() : path + "." + key));
  }
}

// The share of a head that is rotated.
double RopeReader::rotary_share(const JsonNode& rope) const {
  const JsonNode inside = rope["partial_rotary_factor"];
  const double share = (inside.is_null() ? fields["partial_rotary_factor"] : inside).number_or(1);
  if (share == 1) return share;
  if (!family.rotates_partly)
    fail(ExitCode::kBadConfig, "{}: field '{}' is not supported, expected 1", fields.origin(),
         inside.is_null() ? "partial_rotary_factor" : inside.path());
  if (!(share > 0 && share < 1)) inside.expected("a number above 0, at most 1");
  return share;
}

Rope RopeReader::read(const JsonNode& rope, double theta) const {
  constexpr double kMaxTheta = 1e18;
  check_keys(rope, "");
  const double share = rotary_share(rope);
  if (share != 1) {
    config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * share);
    if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0)
      fail(ExitCode::kBadData,
           "{}: field 'partial_rotary_factor': expected an even number of rotated elements, found {} of {}",
           fields.origin(), config.rotary_dim, config.head_dim);
  }
  return {read_positive(rope["rope_theta"], theta, kMaxTheta), read_scaling(rope)};
}

// Reads one of the two forms: version 5 writes rope_parameters with rope_theta inside it, version 4
// rope_scaling next to rope_theta.
Rope RopeReader::read_form(const char* name) {
  const double theta = read_positive(fields["rope_theta"], family.rope_theta, 1e18);
  const JsonNode rope = fields[name];
  if (!rope.is_null()) return read(rope, theta);
  const Json absent = family.absent_rope.empty() ? Json::object() : Json::parse(family.absent_rope);
  return read(JsonNode(absent, fields.origin()), theta);
}

// Transformers takes rope_scaling if it is not empty.
bool is_given(const JsonNode& scaling) {
  return !scaling.is_null() && !(scaling.is_object() && scaling.json().empty());
}

// Layers with a window and without have an embedding each: rope_parameters.sliding_attention and
// full_attention, or what version 4 wrote: rope_theta and rope_scaling of the layers without a window.
void read_ropes_by_kind(RopeReader& reader) {
  const JsonNode& fields = reader.fields;
  ModelConfig& config = reader.config;
  const double theta = read_positive(fields["rope_theta"], reader.family.rope_theta, 1e18);
  config.local_rope.theta = *reader.family.local_rope_theta;
  for (const int64_t window : config.sliding_window)
    config.layer_rope.push_back(window == 0 ? LayerRope::kGlobal : LayerRope::kLocal);
  if (!reader.family.local_theta_field.empty())
    config.local_rope.theta =
        read_positive(fields[reader.family.local_theta_field], config.local_rope.theta, 1e18);
  const JsonNode parameters = fields["rope_parameters"], scaling = fields["rope_scaling"];
  config.rope_theta = theta;
  const auto use = [&](const Rope& rope) {
    config.rope_theta = rope.theta;
    config.rope_scaling = rope.scaling;
  };
  if (!parameters.is_null()) {
    for (const auto& [kind, value] : parameters.object().items()) {
      if (kind != "full_attention" && kind != "sliding_attention")
        parameters[kind].expected("full_attention and sliding_attention, a rotary embedding each, alone");
    }
    reader.is_local = true;
    if (!parameters["full_attention"].is_null()) use(reader.read(parameters["full_attention"], theta));
    if (!parameters["sliding_attention"].is_null())
      config.local_rope = reader.read(parameters["sliding_attention"], config.local_rope.theta);
    reader.is_local = false;
  }
  if (is_given(scaling)) use(reader.read(scaling, config.rope_theta));
  for (const Rope& rope : {global_rope(config), config.local_rope}) {
    if (rope.scaling.type == RopeType::kLongRope)
      fail(ExitCode::kBadConfig, "{}: longrope is not supported for one kind of layers alone",
           fields.origin());
  }
}

}  // namespace

JsonNode rope_fields(const JsonNode& fields) {
  return fields[is_given(fields["rope_scaling"]) ? "rope_scaling" : "rope_parameters"];
}

int64_t rotated_elements(const ModelConfig& config) {
  return config.rotary_dim == 0 ? config.head_dim : config.rotary_dim;
}

Rope global_rope(const ModelConfig& config) { return {config.rope_theta, config.rope_scaling}; }

bool has_local_rope(const ModelConfig& config) {
  return std::ranges::find(config.layer_rope, LayerRope::kLocal) != config.layer_rope.end();
}

void read_rope(const JsonNode& fields, const FamilyInfo& family, ModelConfig& config) {
  RopeReader reader = {fields, family, config_fields(family), config};
  if (family.local_rope_theta) return read_ropes_by_kind(reader);
  const bool has_scaling = is_given(fields["rope_scaling"]);
  const bool has_parameters = !fields["rope_parameters"].is_null();
  const Rope rope = reader.read_form(has_scaling ? "rope_scaling" : "rope_parameters");
  if (has_scaling && has_parameters && rope != reader.read_form("rope_parameters"))
    fail(ExitCode::kBadData,
         "{}: fields 'rope_scaling' and 'rope_parameters' contradict each other: keep one", fields.origin());
  const double theta = fields["rope_theta"].number_or(rope.theta);
  if (theta != rope.theta)
    log_warning("{}: field 'rope_theta': {} has no effect beside {} with the other settings of RoPE",
                fields.origin(), theta, rope.theta);
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
}

}  // namespace tessera
