#include "formats/huggingface/model_families.h"

#include <algorithm>

#include "base/embedded_text.h"
#include "base/error.h"

namespace tessera {

std::span<const EmbeddedText> config_texts();  // formats/huggingface/*.tsv
std::vector<FamilyInfo> listed_families();     // formats/huggingface/families, made by the build

std::span<const FamilyInfo> model_families() {
  static const std::vector<FamilyInfo> families = listed_families();
  return families;
}

const FamilyInfo& family_info(const std::string& family) {
  const auto found = std::ranges::find(model_families(), family, &FamilyInfo::model_type);
  TESSERA_CHECK(found != model_families().end(), "family '{}'", family);
  return *found;
}

namespace {

const std::vector<ConfigField>& common_fields(FamilyKind kind) {
  const auto read_lines = [](const char* file) {
    std::vector<ConfigField> lines;
    for (const auto& cells : read_cells(file, text_named(config_texts(), file), 3))
      lines.push_back({cells[0], cells[1], cells[2]});
    return lines;
  };
  static const std::vector<ConfigField> of_decoders = read_lines("config_fields");
  const auto read_more = [&](const char* file) {
    std::vector<ConfigField> lines = read_lines(file);
    for (const ConfigField& line : of_decoders) {
      const bool is_common = line.use == "only" || line.use == "ignored";
      if (is_common && find_config_field(lines, line.name) == nullptr) lines.push_back(line);
    }
    return lines;
  };
  static const std::vector<ConfigField> of_t5 = read_more("t5_fields");
  static const std::vector<ConfigField> of_encoders = read_more("encoder_fields");
  return kind == FamilyKind::kDecoder          ? of_decoders
         : kind == FamilyKind::kEncoderDecoder ? of_t5
                                               : of_encoders;
}

}  // namespace

std::vector<ConfigField> config_fields(const FamilyInfo& family) {
  std::vector<ConfigField> fields = family.fields;
  for (const ConfigField& line : common_fields(family.kind)) {
    if (find_config_field(family.fields, line.name) == nullptr) fields.push_back(line);
  }
  return fields;
}

const ConfigField* find_config_field(const std::vector<ConfigField>& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &ConfigField::name);
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace tessera
