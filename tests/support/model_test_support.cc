#include "support/model_test_support.h"

#include <algorithm>
#include <cstdlib>

#include "base/rng.h"
#include "formats/safetensors/safetensors.h"

namespace tessera {

std::vector<TokenRow> random_rows(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed) {
  const CounterRng ids(seed, 1);
  const CounterRng ignored(seed, 2);
  std::vector<TokenRow> rows;
  uint64_t index = 0;
  for (const int64_t length : lengths) {
    TokenRow row;
    for (int64_t t = 0; t < length; ++t, ++index) {
      row.ids.push_back(static_cast<int32_t>(ids.uniform(index) * static_cast<float>(vocab_size)));
      row.labels.push_back(ignored.uniform(index) < 0.2f ? kIgnoredLabel : row.ids.back());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

PackedBatch pack(const std::vector<TokenRow>& rows) {
  PackedBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const TokenRow& row : rows) {
    for (size_t t = 0; t < row.ids.size(); ++t) {
      batch.input_ids.push_back(row.ids[t]);
      batch.positions.push_back(static_cast<int32_t>(t));
      batch.targets.push_back(t + 1 < row.ids.size() ? row.labels[t + 1] : kIgnoredLabel);
      batch.num_targets += batch.targets.back() != kIgnoredLabel;
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
  }
  return batch;
}

ModelConfig tiny_config() {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 12;
  config.intermediate_size = 11;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 100;
  return config;
}

std::vector<NamedConfig> all_option_configs() {
  std::vector<NamedConfig> configs;
  const auto add = [&](const char* name, auto change) {
    configs.push_back({name, tiny_config()});
    change(configs.back().config);
  };
  const auto llama3 = [](ModelConfig& c) { c.rope_scaling = {RopeType::kLlama3, 8, 0.25, 2, 16}; };
  add("grouped_query", [](ModelConfig&) {});
  add("multi_head", [](ModelConfig& c) { c.num_attention_heads = c.num_key_value_heads = 3; });
  add("multi_query_wide_heads", [](ModelConfig& c) {
    c.num_attention_heads = 3;
    c.num_key_value_heads = 1;
    c.head_dim = 6;
  });
  add("qkv_bias", [](ModelConfig& c) { c.qkv_bias = true; });
  add("attention_bias", [](ModelConfig& c) { c.qkv_bias = c.o_bias = true; });
  add("mlp_bias", [](ModelConfig& c) { c.mlp_bias = true; });
  add("qk_norm", [](ModelConfig& c) { c.qk_norm = true; });
  add("sliding_window", [](ModelConfig& c) { c.sliding_window = {3, 0}; });
  add("tied", [](ModelConfig& c) { c.tie_word_embeddings = true; });
  add("linear_rope", [](ModelConfig& c) { c.rope_scaling = {RopeType::kLinear, 4, 1, 4, 8192}; });
  add("llama3_rope", llama3);
  add("scales", [](ModelConfig& c) {
    c.embedding_scale = 3;
    c.residual_scale = 0.4;
    c.attention_scale = 0.3;
    c.logits_scale = 0.7;
  });
  // A family whose four norms have names.
  add("norms_after", [](ModelConfig& c) {
    c.family = "olmo2";
    c.norm_placement = NormPlacement::kAfter;
    c.qk_norm = c.qk_norm_whole = true;
  });
  add("soft_caps", [](ModelConfig& c) {
    c.attention_softcap = 0.7;
    c.logits_softcap = 1.5;
  });
  add("norms_before_and_after", [](ModelConfig& c) {
    c.family = "gemma3_text";
    c.norm = NormKind::kRmsPlusOne;
    c.norm_placement = NormPlacement::kBoth;
    c.activation = Activation::kGatedGeluTanh;
    c.qk_norm = true;
  });
  add("parallel_blocks", [](ModelConfig& c) {
    c.family = "cohere2";
    c.norm = NormKind::kLayer;
    c.parallel_blocks = c.qkv_bias = c.o_bias = true;
  });
  add("rope_by_layer", [](ModelConfig& c) {
    c.layer_rope = {LayerRope::kNone, LayerRope::kLocal};
    c.local_rope = {1000, {}};
  });
  add("part_of_neighbours", [](ModelConfig& c) {
    c.rotary_dim = 2;
    c.rope_interleaved = true;
  });
  add("yarn_with_scaled_queries", [](ModelConfig& c) {
    c.rope_scaling.type = RopeType::kYarn;
    c.rope_scaling.factor = 4;
    c.rope_scaling.attention_factor = 1.2;
    c.rope_scaling.original_max_position_embeddings = 16;
    c.query_scale_beta = 0.5;
    c.query_scale_positions = 2;
  });
  if (test_device() == DeviceKind::kCpu) {
    add("experts", [](ModelConfig& c) { c.experts = {4, 3, 9, true, 0, {true, true}}; });
    add("one_expert_of_three_and_a_dense_layer", [](ModelConfig& c) {
      c.experts = {3, 1, 5, false, 0, {false, true}};
    });
    add("fused_experts_and_sinks", [](ModelConfig& c) {
      c.family = "gpt_oss";
      c.qkv_bias = c.o_bias = c.attention_sinks = true;
      c.sliding_window = {2, 0};
      c.rope_scaling.type = RopeType::kYarn;
      c.rope_scaling.factor = 4;
      c.rope_scaling.attention_factor = 1.2;
      c.rope_scaling.original_max_position_embeddings = 16;
      c.rope_scaling.truncate = false;
      c.experts = {4, 3, 9, true, 0, {true, true}, ClampedSwiglu{.alpha = 1.3f, .limit = 0.4f}};
    });
  }
  add("everything", [&](ModelConfig& c) {
    c.qkv_bias = c.o_bias = c.mlp_bias = c.qk_norm = c.tie_word_embeddings = true;
    c.sliding_window = {0, 2};
    llama3(c);
  });
  return configs;
}

ModelFlops model_flops(const ModelConfig& config, std::span<const int32_t> cu_seqlens, int64_t num_targets) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  return make_model(config, DType::kF32, *ops)->flops(cu_seqlens, 0, num_targets);
}

std::vector<float> random_weights(const ParameterLayout& layout, float scale, uint64_t seed) {
  std::vector<float> flat(static_cast<size_t>(layout.num_elements()), 0.0f);
  for (const Parameter& parameter : layout.parameters()) {
    const CounterRng rng(seed, hash_name(parameter.name));
    const bool is_norm = parameter.name.ends_with("norm.weight");
    for (int64_t i = 0; i < parameter.num_elements; ++i) {
      const float value = scale * rng.normal(static_cast<uint64_t>(i));
      flat[static_cast<size_t>(parameter.offset + i)] = is_norm ? 1 + value : value;
    }
  }
  return flat;
}

DeviceKind test_device() {
  const char* const name = std::getenv("TESSERA_TEST_DEVICE");
  const std::string_view device = name == nullptr ? "cpu" : name;
  TESSERA_CHECK(device == "cpu" || device == "cuda", "TESSERA_TEST_DEVICE '{}'", device);
  return device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

void copy_weights(const std::vector<float>& weights, const TensorView& to) {
  if (to.dtype() == DType::kF32) return copy(ConstTensorView(weights.data(), to.dtype(), to.shape()), to);
  std::vector<bf16> rounded(weights.size());
  std::transform(weights.begin(), weights.end(), rounded.begin(), [](float w) { return to_bf16(w); });
  copy(ConstTensorView(rounded.data(), to.dtype(), to.shape()), to);
}

std::vector<float> read_weights(const std::filesystem::path& folder, const ParameterLayout& layout) {
  const SafetensorsFile model = SafetensorsFile::open(folder / "model.safetensors");
  std::vector<float> weights(static_cast<size_t>(layout.num_elements()));
  for (const Parameter& parameter : layout.parameters()) {
    const bool is_slice = parameter.slice.count > 0;
    const SafetensorsEntry* entry = model.find(is_slice ? parameter.slice.tensor : parameter.name);
    TESSERA_CHECK(entry != nullptr, "{} has no tensor {}", folder.string(), parameter.name);
    model.read(*entry, parameter.slice.index * parameter.num_elements,
               TensorView(weights.data() + parameter.offset, DType::kF32, {parameter.num_elements}));
  }
  return weights;
}

double sum_of_squares(const ParameterLayout& layout, const std::vector<float>& values) {
  double sum = 0;
  for (const Parameter& parameter : layout.parameters()) {
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
      const auto value = static_cast<double>(values[static_cast<size_t>(i)]);
      sum += value * value;
    }
  }
  return sum;
}

std::vector<uint64_t> numbers_of_tokens(const PackedBatch& batch) {
  std::vector<uint64_t> numbers;
  for (size_t t = 0; t < batch.input_ids.size(); ++t)
    numbers.push_back(static_cast<uint64_t>(batch.positions[t]) << 32 |
                      static_cast<uint64_t>(batch.input_ids[t]));
  return numbers;
}

ActivationLimits limits_of(const PackedBatch& batch, bool gradient_checkpointing) {
  ActivationLimits limits;
  limits.max_tokens = batch.num_tokens();
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    limits.max_sequence_length =
        std::max<int64_t>(limits.max_sequence_length, batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
  }
  limits.gradient_checkpointing = gradient_checkpointing;
  return limits;
}

}  // namespace tessera
