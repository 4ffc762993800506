// adapter_config.json: which linear layers of a model have LoRA adapters, as in PEFT (LoraConfig). Hu et al.,
// LoRA: low-rank adaptation of large language models, 2021.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/huggingface/module_names.h"

namespace tessera {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterFileName = "adapter_model.safetensors";

// y = x W^T + scale * dropout(x) A^T B^T   with A [rank, in], B [out, rank].
struct LoraModule {
  int64_t rank;
  double scale;
};

// Fields spelled as in PEFT.
struct LoraConfig {
  std::string base_model_name_or_path;
  std::string task_type = "CAUSAL_LM";  // of PEFT; SEQ_2_SEQ_LM beside T5, "" beside an encoder
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  bool use_rslora = false;  // scale alpha / sqrt(r) instead of alpha / r
  ModuleSelection target_modules;
  ModuleSelection exclude_modules;
  // If target_modules is a list, only modules in these layers; empty = all.
  std::vector<int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;
  // For modules other than the rest: the first key that fits, see is_pattern_key_of().
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // Why PEFT would train this adapter in another way; "" = it would not. Its outputs are the same.
  std::string other_training;

  // The adapter of a module, "model.layers.0.self_attn.q_proj"; nullopt = it has none.
  std::optional<LoraModule> adapter_of(std::string_view module) const;
};

// The linear layers of a decoder layer, which can have adapters: "q_proj", ... "down_proj".
const std::vector<std::string>& lora_module_names();

// Reads a folder's adapter_config.json. Errors (kBadData; kBadConfig for what PEFT has and Tessera has not)
// name the file, the field, what was expected and what was found.
LoraConfig read_lora_config(const std::filesystem::path& folder);
LoraConfig parse_lora_config(std::string_view json, const std::string& origin);
// The text of adapter_config.json.
std::string write_lora_config(const LoraConfig& config);

// Names of a module's tensors in adapter_model.safetensors: "base_model.model." + module + ".lora_A.weight".
std::string lora_a_name(std::string_view module);
std::string lora_b_name(std::string_view module);

}  // namespace tessera
