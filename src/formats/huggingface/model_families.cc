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
  };
  return families;
}

const FamilyInfo& family_info(ModelFamily family) {
  const auto found = std::ranges::find(model_families(), family, &FamilyInfo::family);
  TESSERA_CHECK(found != model_families().end(), "family {}", static_cast<int>(family));
  return *found;
}

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields = [] {
    constexpr const char* kFile = "config_fields";
    std::vector<ConfigField> lines;
    for (const auto& cells : read_cells(kFile, text_named(config_texts(), kFile), 3))
      lines.push_back({cells[0], cells[1], cells[2]});
    return lines;
  }();
  return fields;
}

const ConfigField* find_config_field(std::string_view name) {
  const auto found = std::ranges::find(config_fields(), name, &ConfigField::name);
  return found == config_fields().end() ? nullptr : &*found;
}

}  // namespace tessera
