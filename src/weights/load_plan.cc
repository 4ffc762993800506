#include "weights/load_plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/convert.h"
#include "formats/huggingface/model_families.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

using Location = SafetensorsModel::Location;

// The shape in terms of config.json's fields, for messages.
std::string_view shape_formula(const std::string& name) {
  constexpr std::array<std::array<std::string_view, 2>, 35> kFormulas = {{
      {"qkv_proj.weight", "[(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size]"},
      {"gate_up_proj.weight", "[2 * intermediate_size, hidden_size]"},
      {"shared.weight", "[vocab_size, d_model]"},
      {"Attention.q.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.k.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.v.weight", "[num_heads * d_kv, d_model]"},
      {"Attention.o.weight", "[d_model, num_heads * d_kv]"},
      {"relative_attention_bias.weight", "[relative_attention_num_buckets, num_heads]"},
      {"wi.weight", "[d_ff, d_model]"},
      {"wi_0.weight", "[d_ff, d_model]"},
      {"wi_1.weight", "[d_ff, d_model]"},
      {"wo.weight", "[d_model, d_ff]"},
      {"embed_tokens.weight", "[vocab_size, hidden_size]"},
      {"lm_head.weight", "[vocab_size, hidden_size]"},
      {"q_proj.weight", "[num_attention_heads * head_dim, hidden_size]"},
      {"k_proj.weight", "[num_key_value_heads * head_dim, hidden_size]"},
      {"v_proj.weight", "[num_key_value_heads * head_dim, hidden_size]"},
      {"o_proj.weight", "[hidden_size, num_attention_heads * head_dim]"},
      {"q_proj.bias", "[num_attention_heads * head_dim]"},
      {"k_proj.bias", "[num_key_value_heads * head_dim]"},
      {"v_proj.bias", "[num_key_value_heads * head_dim]"},
      {"q_norm.weight", "[head_dim]"},
      {"k_norm.weight", "[head_dim]"},
      {"experts.gate_up_proj", "[num_experts, 2 * moe_intermediate_size, hidden_size]"},
      {"experts.down_proj", "[num_experts, hidden_size, moe_intermediate_size]"},
      {"mlp.gate.weight", "[num_experts, hidden_size]"},
      {"block_sparse_moe.gate.weight", "[num_local_experts, hidden_size]"},
      {"w1.weight", "[intermediate_size, hidden_size]"},
      {"w2.weight", "[hidden_size, intermediate_size]"},
      {"w3.weight", "[intermediate_size, hidden_size]"},
      {"gate_proj.weight", "[intermediate_size, hidden_size]"},
      {"up_proj.weight", "[intermediate_size, hidden_size]"},
      {"down_proj.weight", "[hidden_size, intermediate_size]"},
      {"gate_proj.bias", "[intermediate_size]"},
      {"up_proj.bias", "[intermediate_size]"},
  }};
  if (name.find(".experts.") != name.npos && name.ends_with("_proj.weight"))
    return name.ends_with("down_proj.weight") ? "[hidden_size, moe_intermediate_size]"
                                              : "[moe_intermediate_size, hidden_size]";
  for (const auto& [suffix, formula] : kFormulas) {
    if (name.ends_with(suffix)) return formula;
  }
  return "[hidden_size]";
}

std::string where(const SafetensorsModel& model) {
  const std::filesystem::path& first = model.files().front()->path();
  return model.files().size() == 1 ? first.native() : first.parent_path().native();
}

// The file that says which tensors there are.
const char* description(const ModelConfig& config) {
  return config.lora ? kAdapterConfigName : "config.json";
}

[[noreturn]] void fail_missing(const SafetensorsModel& model, const ModelConfig& config,
                               const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (name == kLmHeadName)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': expected since tie_word_embeddings is false in config.json, found none (set it to "
         "true if the model shares its embeddings)",
         where(model), name);
  fail(ExitCode::kBadData, "{}: tensor '{}': expected by {}, found none among its {}", where(model), name,
       description(config), count_of(std::ssize(model.tensors()), "tensor"));
}

void check_tensor(const Parameter& parameter, const Location& location) {
  const SafetensorsEntry& entry = *location.entry;
  const std::string& file = location.file->path().native();
  if (entry.shape != parameter.shape)
    fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {} = {} of config.json, found {}", file,
         parameter.name, shape_text(parameter.shape), shape_formula(parameter.name), shape_text(entry.shape));
  if (!can_convert(entry.dtype, DType::kF32))
    fail(ExitCode::kBadData, "{}: tensor '{}': expected BF16, F16, F32 or F64, found {}", file,
         parameter.name, dtype_name(entry.dtype));
}

// The part of the model that a tensor would belong to: a decoder layer, or a module.
std::string part_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t end = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : name.rfind('.');
  return name.substr(0, end == name.npos ? end : end + 1);
}

// Transformers ignores tensors that the model does not have; most families refuse them. One of a layer or
// module that it has means that config.json describes another model: the values would be wrong.
void check_others(const std::vector<const WeightEntry*>& others, const ModelConfig& config,
                  const ParameterLayout& layout) {
  for (const WeightEntry* other : others) {
    const std::string part = part_of(model_name_of(other->first));
    const auto is_part = [&](const Parameter& parameter) { return parameter.name.starts_with(part); };
    if (!config.lora && !family_info(config.family).refuses_unknown_fields &&
        std::ranges::none_of(layout.parameters(), is_part))
      continue;
    fail(ExitCode::kBadData, "{}: tensor '{}': not part of the model that {} describes",
         other->second.file->path().native(), printable(other->first), description(config));
  }
  if (others.empty()) return;
  log_warning_once(fmt::format("{}: {} ('{}'{}) not part of the model that {} describes: ignored",
                               others.front()->second.file->path().native(),
                               count_of(std::ssize(others), "tensor"), printable(others.front()->first),
                               others.size() > 1 ? ", ..." : "", description(config)));
}

}  // namespace

std::vector<PlannedTensor> plan_load(const SafetensorsModel& model, const ModelConfig& config,
                                     const ParameterLayout& layout) {
  std::vector<PlannedTensor> tensors;
  std::set<const WeightEntry*> used;
  for (const Parameter& parameter : layout.parameters()) {
    std::optional<FusedPlace> fused;
    const WeightEntry* found = find_parameter(model, config, parameter, &fused);
    if (found == nullptr) fail_missing(model, config, parameter);
    Parameter in_file = parameter;
    if (fused) in_file.name = fused->name;
    if (fused) in_file.shape = fused->shape;
    check_tensor(in_file, found->second);
    tensors.push_back({parameter.name, found->second, parameter.offset, parameter.num_elements, &parameter,
                       /*equal=*/nullptr, fused ? fused->first_element : 0});
    used.insert(found);
  }
  std::vector<const WeightEntry*> others;
  for (const WeightEntry& entry : model.tensors()) {
    if (used.contains(&entry) || is_left_over(entry.first, config)) continue;
    if (!repeats_embedding(entry.first, config)) {
      others.push_back(&entry);
      continue;
    }
    const Parameter& embedding = layout.parameters().front();
    Parameter copy = embedding;
    copy.name = entry.first;
    check_tensor(copy, entry.second);
    tensors.push_back({entry.first, entry.second, embedding.offset, embedding.num_elements, &embedding,
                       find_weight(model, config, embedding.name)});
  }
  check_others(others, config, layout);
  // In file order, so that a disk is read sequentially.
  std::stable_sort(tensors.begin(), tensors.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
    const auto key = [](const PlannedTensor& tensor) {
      return std::tuple<const std::string&, int64_t, int64_t>(
          tensor.location.file->path().native(), tensor.location.entry->offset_bytes, tensor.first_element);
    };
    return key(a) < key(b);
  });
  return tensors;
}

}  // namespace tessera
