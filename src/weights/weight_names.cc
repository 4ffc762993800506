#include "weights/weight_names.h"

#include <charconv>

#include "base/error.h"
#include "formats/huggingface/model_families.h"
#include "weights/saved_tensors.h"

namespace tessera {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
// What models with images call their text part, in Transformers' versions, and its names alone.
constexpr std::pair<std::string_view, std::string_view> kTextPrefixes[] = {
    {"language_model.model.", "model."},
    {"model.language_model.", "model."},
    {"language_model.lm_head.", "lm_head."}};

// Whether the folder may be that of a model with images.
bool may_be_text_part(const ModelConfig& config) { return !family_info(config.family).text_of.empty(); }

}  // namespace

std::string model_name_of(std::string_view name_in_file) {
  for (const auto& [prefix, ours] : kTextPrefixes) {
    if (name_in_file.starts_with(prefix)) return std::string(ours).append(name_in_file.substr(prefix.size()));
  }
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
  for (const auto& [prefix, ours] : kTextPrefixes) {
    if (!may_be_text_part(config) || !parameter.starts_with(ours)) continue;
    if (const WeightEntry* found = find(std::string(prefix) + parameter.substr(ours.size()))) return found;
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
  if (!is_shared) return nullptr;
  const WeightEntry* head = find(kLmHeadName);
  return head != nullptr || !may_be_text_part(config) ? head : find("language_model.lm_head.weight");
}

std::optional<FusedPlace> fused_place(const ModelConfig& config, const Parameter& parameter) {
  if (parameter.slice.count > 0)
    return FusedPlace{parameter.slice.tensor, saved_shape(parameter), saved_begin(parameter)};
  if (config.experts && config.experts->fused) return std::nullopt;
  const int64_t layer = parameter.group - 1;
  if (!config.experts || layer < 0 || layer >= config.num_hidden_layers || !config.has_experts(layer))
    return std::nullopt;
  const DecoderNames names = family_info(config.family).names;
  const std::string of_layer = fmt::format("model.layers.{}.", layer);
  if (parameter.name == of_layer + names.router + ".weight")
    return FusedPlace{of_layer + "mlp.gate.weight", parameter.shape, 0};
  std::string_view rest = parameter.name;
  const std::string of_experts = of_layer + names.experts + ".";
  if (!rest.starts_with(of_experts)) return std::nullopt;
  rest.remove_prefix(of_experts.size());
  int64_t expert = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
  if (error != std::errc() || end == rest.data() + rest.size()) return std::nullopt;
  const std::string_view matrix = rest.substr(static_cast<size_t>(end - rest.data()) + 1);
  const int64_t E = config.experts->num_experts, F = config.experts->moe_intermediate_size;
  const int64_t D = config.hidden_size;
  const std::string fused = of_layer + "mlp.experts.";
  if (matrix == names.expert_down + ".weight")
    return FusedPlace{fused + "down_proj", {E, D, F}, expert * D * F};
  const int64_t half = matrix == names.expert_up + ".weight" ? 1 : 0;
  return FusedPlace{fused + "gate_up_proj", {E, 2 * F, D}, (2 * expert + half) * F * D};
}

bool repeats_embedding(const std::string& name_in_file, const ModelConfig& config) {
  if (model_name_of(name_in_file) == kLmHeadName) return config.tie_word_embeddings;
  if (config.encoder)
    return name_in_file == "cls.predictions.decoder.weight" || name_in_file == "lm_head.decoder.weight" ||
           name_in_file == "decoder.weight";
  return config.encoder_decoder &&
         (name_in_file == "encoder.embed_tokens.weight" || name_in_file == "decoder.embed_tokens.weight");
}

bool is_left_over(const std::string& name_in_file, const ModelConfig& config) {
  for (const std::string_view start :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}) {
    if (may_be_text_part(config) && name_in_file.starts_with(start)) return true;
  }
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
