#include "weights/stored_parameter.h"

#include <array>
#include <string_view>

#include "base/error.h"
#include "formats/huggingface/convert.h"
#include "formats/huggingface/mxfp4.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

// The shape in terms of config.json's fields, for messages.
std::string_view shape_formula(const std::string& name) {
  constexpr std::array<std::array<std::string_view, 2>, 40> kFormulas = {{
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
      {"router.weight", "[num_local_experts, hidden_size]"},
      {"router.bias", "[num_local_experts]"},
      {"gate_up_proj_bias", "[num_local_experts, 2 * intermediate_size]"},
      {"down_proj_bias", "[num_local_experts, hidden_size]"},
      {"sinks", "[num_attention_heads]"},
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

constexpr int64_t kMxfp4BlockBytes = kMxfp4Block / 2;

void check_codes(const WeightEntry& entry, const std::vector<int64_t>& shape) {
  const SafetensorsEntry& found = *entry.second.entry;
  if (found.shape == shape && found.dtype == DType::kU8) return;
  fail(ExitCode::kBadData, "{}: tensor '{}': expected U8 {} of config.json, found {} {}",
       entry.second.file->path().native(), entry.first, shape_text(shape), dtype_name(found.dtype),
       shape_text(found.shape));
}

// The codes and scales of a slice.
std::optional<StoredParameter> find_mxfp4(const SafetensorsModel& model, const ModelConfig& config,
                                          const Parameter& parameter) {
  if (parameter.slice.count == 0) return std::nullopt;
  const WeightEntry* blocks = find_weight(model, config, parameter.slice.tensor + "_blocks");
  const WeightEntry* scales = find_weight(model, config, parameter.slice.tensor + "_scales");
  if (blocks == nullptr || scales == nullptr) return std::nullopt;
  const int64_t K = parameter.shape[0], N = parameter.shape[1];
  if (K % kMxfp4Block != 0)
    fail(ExitCode::kBadConfig, "{}: tensor '{}': expected a multiple of {} inputs of each expert, found {}",
         blocks->second.file->path().native(), blocks->first, kMxfp4Block, K);
  check_codes(*blocks, {parameter.slice.count, N, K / kMxfp4Block, kMxfp4BlockBytes});
  check_codes(*scales, {parameter.slice.count, N, K / kMxfp4Block});
  return StoredParameter{blocks, parameter.slice.index * parameter.num_elements, scales};
}

void read_bytes(const WeightEntry& entry, int64_t begin, std::vector<uint8_t>& bytes) {
  entry.second.file->read(*entry.second.entry, begin,
                          TensorView(bytes.data(), DType::kU8, {std::ssize(bytes)}));
}

}  // namespace

void check_stored_tensor(const Parameter& parameter, const SafetensorsModel::Location& location) {
  const SafetensorsEntry& entry = *location.entry;
  const std::string& file = location.file->path().native();
  if (entry.shape != parameter.shape)
    fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {} = {} of config.json, found {}", file,
         parameter.name, shape_text(parameter.shape), shape_formula(parameter.name), shape_text(entry.shape));
  if (!can_convert(entry.dtype, DType::kF32))
    fail(ExitCode::kBadData, "{}: tensor '{}': expected BF16, F16, F32 or F64, found {}", file,
         parameter.name, dtype_name(entry.dtype));
}

int64_t StoredParameter::bytes_of(int64_t num_elements) const {
  if (is_mxfp4()) return num_elements / 2 + num_elements / kMxfp4Block;
  return num_elements * dtype_bytes(tensor->second.entry->dtype);
}

std::optional<StoredParameter> find_parameter(const SafetensorsModel& model, const ModelConfig& config,
                                              const Parameter& parameter) {
  const WeightEntry* found = find_weight(model, config, parameter.name);
  const std::optional<FusedPlace> fused = found == nullptr ? fused_place(config, parameter) : std::nullopt;
  if (fused) found = find_weight(model, config, fused->name);
  if (found == nullptr) return find_mxfp4(model, config, parameter);
  Parameter in_file = parameter;
  if (fused) in_file.name = fused->name;
  if (fused) in_file.shape = fused->shape;
  check_stored_tensor(in_file, found->second);
  return StoredParameter{found, fused ? fused->first_element : 0};
}

void ParameterReader::read(const StoredParameter& stored, const Parameter& parameter, int64_t begin,
                           std::span<float> values) {
  const SafetensorsModel::Location& at = stored.tensor->second;
  if (!stored.is_mxfp4()) {
    at.file->read(*at.entry, stored.first_element + begin,
                  TensorView(values.data(), DType::kF32, {std::ssize(values)}));
    return;
  }
  if (tensor_ != stored.tensor || first_element_ != stored.first_element) {
    tensor_ = nullptr;
    blocks_.resize(static_cast<size_t>(parameter.num_elements / 2));
    scales_.resize(static_cast<size_t>(parameter.num_elements / kMxfp4Block));
    read_bytes(*stored.tensor, stored.first_element / 2, blocks_);
    read_bytes(*stored.scales, stored.first_element / kMxfp4Block, scales_);
    tensor_ = stored.tensor;
    first_element_ = stored.first_element;
  }
  decode_mxfp4_transposed({blocks_, scales_, parameter.shape[1], parameter.shape[0]}, begin, values);
}

}  // namespace tessera
