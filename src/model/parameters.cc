#include "model/parameters.h"

#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {
namespace {

bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// Hugging Face's Trainer exempts biases and every RMSNorm, including Qwen3's q_norm and k_norm.
bool has_weight_decay(const std::string& name) {
  return !has_suffix(name, ".bias") && !has_suffix(name, "norm.weight");
}

}  // namespace

std::string layer_parameter_name(int64_t layer, const std::string& suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  const int64_t last_group = config.num_hidden_layers + 1;
  begin_block();
  append("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) append_layer(config, layer);
  begin_block();
  append("model.norm.weight", {config.hidden_size}, last_group);
  if (!config.tie_word_embeddings) {
    begin_block();
    append("lm_head.weight", {config.vocab_size, config.hidden_size}, last_group);
  }
  // The end is a block boundary too, so that arrays stored back to back stay aligned.
  begin_block();
  for (const Parameter& parameter : parameters_) {
    if (parameter.group < std::ssize(groups_)) continue;
    if (!groups_.empty()) groups_.back().end = parameter.offset;
    groups_.push_back({parameter.offset, num_elements_});
  }
}

void ParameterLayout::append_layer(const ModelConfig& config, int64_t layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const auto add = [&](const char* suffix, std::vector<int64_t> shape) {
    append(layer_parameter_name(layer, suffix), std::move(shape), 1 + layer);
  };

  begin_block();
  add("input_layernorm.weight", {hidden});
  begin_block();
  add("self_attn.q_proj.weight", {q_width, hidden});
  add("self_attn.k_proj.weight", {kv_width, hidden});
  add("self_attn.v_proj.weight", {kv_width, hidden});
  if (config.qkv_bias) {
    begin_block();
    add("self_attn.q_proj.bias", {q_width});
    add("self_attn.k_proj.bias", {kv_width});
    add("self_attn.v_proj.bias", {kv_width});
  }
  if (config.qk_norm) {
    begin_block();
    add("self_attn.q_norm.weight", {config.head_dim});
    begin_block();
    add("self_attn.k_norm.weight", {config.head_dim});
  }
  begin_block();
  add("self_attn.o_proj.weight", {hidden, q_width});
  if (config.o_bias) {
    begin_block();
    add("self_attn.o_proj.bias", {hidden});
  }

  begin_block();
  add("post_attention_layernorm.weight", {hidden});
  begin_block();
  add("mlp.gate_proj.weight", {intermediate, hidden});
  add("mlp.up_proj.weight", {intermediate, hidden});
  if (config.mlp_bias) {
    begin_block();
    add("mlp.gate_proj.bias", {intermediate});
    add("mlp.up_proj.bias", {intermediate});
  }
  begin_block();
  add("mlp.down_proj.weight", {hidden, intermediate});
  if (config.mlp_bias) {
    begin_block();
    add("mlp.down_proj.bias", {hidden});
  }
}

void ParameterLayout::begin_block() { num_elements_ = round_up(num_elements_, kParameterAlignment); }

void ParameterLayout::append(std::string name, std::vector<int64_t> shape, int64_t group) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    TESSERA_CHECK(dim > 0, "{}: a dimension is {}", name, dim);
    count *= dim;
  }
  const bool weight_decay = has_weight_decay(name);
  index_.emplace(name, parameters_.size());
  parameters_.push_back({std::move(name), std::move(shape), num_elements_, count, weight_decay, group});
  num_elements_ += count;
  num_parameters_ += count;
}

const Parameter* ParameterLayout::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

const Parameter& ParameterLayout::at(const std::string& name) const {
  const Parameter* parameter = find(name);
  TESSERA_CHECK(parameter != nullptr, "no parameter '{}' in this model", name);
  return *parameter;
}

}  // namespace tessera
