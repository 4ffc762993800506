#include "weights/weight_names.h"

namespace tessera {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

std::string model_name_of(std::string_view name_in_file) {
  for (const std::string_view part : {"layers.", "embed_tokens.", "norm."}) {
    if (name_in_file.starts_with(part)) return std::string(kPrefix).append(name_in_file);
  }
  const bool is_twice =
      name_in_file.starts_with(kPrefix) && name_in_file.substr(kPrefix.size()).starts_with(kPrefix);
  return std::string(is_twice ? name_in_file.substr(kPrefix.size()) : name_in_file);
}

const WeightEntry* find_weight(const SafetensorsModel& model, const ModelConfig& config,
                               const std::string& parameter) {
  const auto find = [&](const std::string& name) -> const WeightEntry* {
    const auto at = model.tensors().find(name);
    return at == model.tensors().end() ? nullptr : &*at;
  };
  if (const WeightEntry* same = find(parameter)) return same;
  for (const std::string& name :
       {parameter.starts_with(kPrefix) ? parameter.substr(kPrefix.size()) : parameter,
        std::string(kPrefix) + parameter}) {
    const WeightEntry* other = find(name);
    if (other != nullptr && model_name_of(name) == parameter) return other;
  }
  // The first BERT called them as TensorFlow does.
  for (const auto& [ours, old] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (!parameter.ends_with(ours)) continue;
    if (const WeightEntry* found =
            find(parameter.substr(0, parameter.size() - std::string_view(ours).size()) + old))
      return found;
  }
  const bool is_shared = parameter == kEmbedding && config.tie_word_embeddings && !config.lora;
  return is_shared ? find(kLmHeadName) : nullptr;
}

bool repeats_embedding(const std::string& name_in_file, const ModelConfig& config) {
  if (name_in_file == kLmHeadName) return config.tie_word_embeddings;
  if (config.encoder)
    return name_in_file == "cls.predictions.decoder.weight" || name_in_file == "lm_head.decoder.weight" ||
           name_in_file == "decoder.weight";
  return config.encoder_decoder &&
         (name_in_file == "encoder.embed_tokens.weight" || name_in_file == "decoder.embed_tokens.weight");
}

bool is_left_over(const std::string& name_in_file) {
  for (const std::string_view start : {"bert.pooler.", "roberta.pooler.", "cls.seq_relationship."}) {
    if (name_in_file.starts_with(start)) return true;
  }
  for (const std::string_view end : {"rotary_emb.inv_freq", "EncDecAttention.relative_attention_bias.weight",
                                     "embeddings.position_ids", ".decoder.bias"}) {
    if (name_in_file.ends_with(end)) return true;
  }
  return false;
}

}  // namespace tessera
