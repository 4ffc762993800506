#include "formats/huggingface/model_families.h"

#include <algorithm>

#include "base/embedded_text.h"
#include "base/error.h"

namespace tessera {

std::span<const EmbeddedText> config_texts();  // formats/huggingface/*.tsv

std::span<const FamilyInfo> model_families() {
  using enum ModelFamily;
  using enum WindowLayers;
  constexpr std::nullopt_t kNoToken = std::nullopt;
  static const FamilyInfo families[] = {
      // heads, head size, positions, window, BOS, EOS, biases of attention, always of q, k, v, of the MLP; QK
      // norm
      {kLlama, "llama", "LlamaForCausalLM", "llama", 0, 0, 2048, kNone, 0, 1, 2, true, false, true, false},
      {kMistral, "mistral", "MistralForCausalLM", "llama", 8, 0, 131072, kAll, 4096, 1, 2, false, false,
       false, false},
      {kQwen2, "qwen2", "Qwen2ForCausalLM", "qwen2", 32, 0, 32768, kAfterFirst, 4096, kNoToken, kNoToken,
       false, true, false, false},
      {kQwen3, "qwen3", "Qwen3ForCausalLM", "qwen3", 32, 128, 32768, kAfterFirst, 4096, kNoToken, kNoToken,
       true, false, false, true},
      {kT5, "t5", "T5ForConditionalGeneration", "", 0, 64, 0, kNone, 0, kNoToken, 1, false, false, false,
       false, FamilyKind::kEncoderDecoder},
      {kBert, "bert", "BertForMaskedLM", "", 0, 0, 512, kNone, 0, kNoToken, kNoToken, false, false, false,
       false, FamilyKind::kEncoder},
      {kXlmRoberta, "xlm-roberta", "XLMRobertaForMaskedLM", "", 0, 0, 512, kNone, 0, 0, 2, false, false,
       false, false, FamilyKind::kEncoder},
      {kModernBert, "modernbert", "ModernBertForMaskedLM", "", 0, 0, 8192, kNone, 0, 50281, 50282, false,
       false, false, false, FamilyKind::kEncoder},
  };
  return families;
}

const FamilyInfo& family_info(ModelFamily family) {
  const auto found = std::ranges::find(model_families(), family, &FamilyInfo::family);
  TESSERA_CHECK(found != model_families().end(), "family {}", static_cast<int>(family));
  return *found;
}

const std::vector<ConfigField>& config_fields(FamilyKind kind) {
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
      if (is_common && std::ranges::find(lines, line.name, &ConfigField::name) == lines.end())
        lines.push_back(line);
    }
    return lines;
  };
  static const std::vector<ConfigField> of_t5 = read_more("t5_fields");
  static const std::vector<ConfigField> of_encoders = read_more("encoder_fields");
  return kind == FamilyKind::kDecoder          ? of_decoders
         : kind == FamilyKind::kEncoderDecoder ? of_t5
                                               : of_encoders;
}

const ConfigField* find_config_field(std::string_view name, FamilyKind kind) {
  const std::vector<ConfigField>& fields = config_fields(kind);
  const auto found = std::ranges::find(fields, name, &ConfigField::name);
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace tessera
