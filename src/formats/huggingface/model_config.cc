// config.json -> ModelConfig. Defaults of absent fields are those of transformers' configuration classes
// (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config), in the spelling of version 4 and of version 5.
#include "formats/huggingface/model_config.h"

#include <algorithm>
#include <optional>

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
  for (const ConfigField& field : config_fields(family)) {
    if (field.use != "only") continue;
    const Json& value = fields[field.name].json();
    const Json neutral = Json::parse(field.value);
    if (value.is_null() || value == neutral) continue;
    fail(ExitCode::kBadConfig, "{}: field '{}': {} is not supported{}", fields.origin(), field.name,
         printable(value.dump()), neutral.is_null() ? "" : fmt::format(", expected {}", field.value));
  }
}

// A likely typo is an error: the default would silently be used instead.
void check_unknown_fields(const JsonNode& fields, const FamilyInfo& family) {
  const std::vector<ConfigField> known = config_fields(family);
  for (const auto& [name, value] : fields.object().items()) {
    if (find_config_field(known, name) != nullptr) continue;
    for (const ConfigField& field : known) {
      if (field.use == "read" && name.size() <= field.name.size() + 2 &&
          edit_distance(name, std::string(field.name)) <= 2 && !fields.contains(field.name))
        fail(ExitCode::kBadConfig, "{}: unknown field '{}': did you mean '{}'?", fields.origin(),
             printable(name), field.name);
    }
    if (family.refuses_unknown_fields && !name.starts_with("_"))
      fail(ExitCode::kBadConfig, "{}: field '{}' is not supported", fields.origin(), printable(name));
    log_warning("{}: field '{}' is unknown and has no effect", fields.origin(), printable(name));
  }
}

// text_config of a model with images, as a config.json of its own; nullopt if it is no such model.
std::optional<Json> text_part(const Json& root, const std::string& origin) {
  const JsonNode fields(root, origin);
  if (!fields["model_type"].is_string()) return std::nullopt;
  const std::string& whole = fields["model_type"].string();
  const auto has_it = [&](const FamilyInfo& family) {
    return std::ranges::find(family.text_of, whole) != family.text_of.end();
  };
  if (std::ranges::none_of(model_families(), has_it)) return std::nullopt;
  Json text = fields["text_config"].object();
  const JsonNode type = fields["text_config"]["model_type"];
  const FamilyInfo* family = find_family(&FamilyInfo::model_type, type.string());
  if (family == nullptr || !has_it(*family))
    fail(ExitCode::kBadConfig, "{}: field '{}': '{}' is not supported in a model of type '{}'", origin,
         type.path(), printable(type.string()), whole);
  for (const char* name :
       {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype"}) {
    if (!text.contains(name) && root.contains(name)) text[name] = root[name];
  }
  text.erase("architectures");
  log_warning_once(fmt::format("{}: of '{}' only the text model is used, without its images: a {}", origin,
                               whole, family->architecture));
  return text;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, const std::string& origin) {
  const Json whole = parse_json(json, origin);
  const std::optional<Json> text = text_part(whole, origin);
  const Json& root = text ? *text : whole;
  const JsonNode fields(root, origin);
  const FamilyInfo& family = read_family(fields);
  refuse_unsupported(fields, family);
  check_unknown_fields(fields, family);
  const auto read = family.kind == FamilyKind::kEncoderDecoder ? read_t5_config
                    : family.kind == FamilyKind::kEncoder      ? read_encoder_config
                                                               : read_decoder_config;
  ModelConfig config = read(fields, family);
  config.json = text ? text->dump(2) : std::string(json);
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
