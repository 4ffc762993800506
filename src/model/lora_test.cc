// Adapters against the formulas of PEFT: a model with adapters is the model whose weights are W + s B A.
#include "model/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "formats/safetensors/safetensors.h"
#include "support/draws.h"
#include "support/model_test_support.h"
#include "support/reference_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

constexpr uint64_t kLoraSeed = 7;
constexpr float kScale = 0.35f;

LoraConfig all_modules(int64_t rank, double alpha) {
  LoraConfig lora;
  lora.r = rank;
  lora.lora_alpha = alpha;
  lora.target_modules = lora_module_names();
  return lora;
}

// A model with adapters, whose memory it owns.
struct AdaptedModel {
  AdaptedModel(const ModelConfig& config, DType dtype, const std::vector<float>& weights,
               const std::vector<float>& adapters)
      : model(config, dtype, *ops), frozen(copy(dtype, weights)), trained(copy(dtype, adapters)) {
    gradients.assign(adapters.size(), NAN);
    model.bind_frozen(view(frozen, dtype, std::ssize(weights)));
    model.bind_parameters(view(trained, dtype, std::ssize(adapters)),
                          {gradients.data(), DType::kF32, {std::ssize(gradients)}});
  }
  static std::vector<float> copy(DType dtype, const std::vector<float>& values) {
    if (dtype == DType::kF32) return values;
    std::vector<float> result(values.size());
    std::transform(values.begin(), values.end(), reinterpret_cast<bf16*>(result.data()), to_bf16);
    return result;
  }
  static TensorView view(std::vector<float>& memory, DType dtype, int64_t count) {
    return {memory.data(), dtype, {count}};
  }

  ThreadPool pool{2};
  std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  LlamaModel model;
  std::vector<float> frozen, trained, gradients;
};

ModelConfig with(ModelConfig config, const LoraConfig& lora) {
  config.lora = lora;
  return config;
}

// W + s B A for every matrix that has an adapter, in double.
std::vector<double> merged(const ParameterLayout& layout, const std::vector<float>& weights,
                           const ParameterLayout& adapter_layout, const std::vector<double>& adapters,
                           const LoraConfig& lora) {
  std::vector<double> result(weights.begin(), weights.end());
  for (const Parameter& parameter : layout.parameters()) {
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    const Parameter* a = adapter_layout.find(lora_a_name(module));
    if (a == nullptr || parameter.shape.size() < 2) continue;
    const Parameter& b = adapter_layout.at(lora_b_name(module));
    const int64_t rank = a->shape[0], K = a->shape[1];
    const double scale = lora.adapter_of(module)->scale;
    for (int64_t o = 0; o < b.shape[0]; ++o) {
      for (int64_t i = 0; i < K; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < rank; ++k) {
          sum += adapters[static_cast<size_t>(b.offset + o * rank + k)] *
                 adapters[static_cast<size_t>(a->offset + k * K + i)];
        }
        result[static_cast<size_t>(parameter.offset + o * K + i)] += scale * sum;
      }
    }
  }
  return result;
}

double reference_loss(const ModelConfig& config, const std::vector<double>& weights,
                      const std::vector<TokenRow>& rows) {
  ReferenceModel<double> reference(config);
  reference.weights().assign(weights.begin(), weights.end());
  double sum = 0;
  int64_t num_targets = 0;
  for (const TokenRow& row : rows) sum += reference.loss_sum(row.ids, row.labels, 0, &num_targets);
  return sum;
}

std::vector<std::pair<std::string, LoraConfig>> adapter_cases(const ModelConfig& config) {
  LoraConfig some = all_modules(3, 6);
  some.target_modules = {"q_proj", "v_proj", "layers.1.mlp.down_proj"};
  LoraConfig patterns = all_modules(4, 5);
  patterns.use_rslora = true;
  patterns.rank_pattern = {{"k_proj", 2}, {"^model.layers.0.mlp.up_proj", 7}};
  patterns.alpha_pattern = {{"o_proj", 1}};
  std::vector<std::pair<std::string, LoraConfig>> cases = {
      {"All", all_modules(5, 10)}, {"Some", some}, {"Patterns", patterns}};
  // Experts whose matrices are [in, out] have none.
  const bool has_fused_experts = config.experts && config.experts->fused;
  for (auto& [name, lora] : cases) {
    if (has_fused_experts) lora.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  }
  return cases;
}

// Bounds as in gradient_test.cc: float32 rounding of a run, and central differences in double.
TEST(LoraGradient, OfEveryAdapterEqualsFiniteDifferencesOfTheMergedModel) {
  constexpr double kRelativeBound = 4 * 10 * 2 * 5 * 0x1.0p-24, kDifferenceBound = 1e-7, kStep = 1e-5;
  for (const NamedConfig& named : all_option_configs()) {
    for (const auto& adapter_case : adapter_cases(named.config)) {
      const LoraConfig& lora = adapter_case.second;
      SCOPED_TRACE(named.name + ", " + adapter_case.first);
      const ModelConfig config = with(named.config, lora);
      const auto rows = random_rows({7, 1, 6}, config.vocab_size, kLoraSeed);
      const PackedBatch batch = pack(rows);
      const ParameterLayout layout = parameter_layout(named.config),
                            adapter_layout = parameter_layout(config);
      const auto weights = random_weights(layout, kScale, kLoraSeed);
      const auto adapters = random_weights(adapter_layout, kScale, kLoraSeed + 1);

      AdaptedModel test(config, DType::kF32, weights, adapters);
      test.model.reserve(limits_of(batch));
      double squares = 0;
      const LossSums sums =
          test.model.forward_backward(batch, /*grad_scale=*/1, 0, {Update::kOverwrite, &squares});
      std::vector<double> values(adapters.begin(), adapters.end());
      const auto loss_of = [&] {
        return reference_loss(named.config, merged(layout, weights, adapter_layout, values, lora), rows);
      };
      const double loss = loss_of();
      EXPECT_NEAR(sums.loss_sum, loss, kRelativeBound * loss);
      EXPECT_NEAR(squares, sum_of_squares(adapter_layout, test.gradients), 1e-6 * squares);
      for (const Parameter& parameter : adapter_layout.parameters()) {
        const int64_t stride = std::max<int64_t>(1, parameter.num_elements / static_cast<int64_t>(draws(5)));
        const int64_t parameter_end = parameter.offset + parameter.num_elements;
        double largest = 1;
        for (int64_t i = parameter.offset; i < parameter_end; ++i)
          largest = std::max<double>(largest, std::abs(test.gradients[static_cast<size_t>(i)]));
        for (int64_t i = parameter.offset; i < parameter_end; i += stride) {
          double& value = values[static_cast<size_t>(i)];
          const double original = value;
          value = original + kStep;
          const double above = loss_of();
          value = original - kStep;
          const double below = loss_of();
          value = original;
          const double expected = (above - below) / (2 * kStep);
          ASSERT_NEAR(test.gradients[static_cast<size_t>(i)], expected,
                      kRelativeBound * largest + kDifferenceBound)
              << parameter.name << " element " << i - parameter.offset;
        }
      }
    }
  }
}

std::vector<float> read_values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  TESSERA_CHECK(entry != nullptr, "{}: no '{}'", file.path().native(), name);
  int64_t count = 1;
  for (const int64_t size : entry->shape) count *= size;
  std::vector<float> values(static_cast<size_t>(count));
  file.read(*entry, 0, TensorView(values.data(), DType::kF32, {count}));
  return values;
}

std::vector<float> read_parameters(const std::filesystem::path& path, const ParameterLayout& layout) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<float> all(static_cast<size_t>(layout.num_elements()));
  for (const Parameter& parameter : layout.parameters()) {
    std::ranges::copy(read_values(file, parameter.name), all.begin() + parameter.offset);
  }
  return all;
}

// The rows of the first step, all micro-batches together.
PackedBatch first_step(const SafetensorsFile& file) {
  const std::vector<int64_t>& shape = file.find("input_ids")->shape;  // [steps, accum, batch, seq]
  std::vector<TokenRow> rows;
  for (int64_t row = 0; row < shape[1] * shape[2]; ++row) {
    const auto ids = [&](const char* name) {
      std::vector<int32_t> values(static_cast<size_t>(shape[3]));
      file.read(*file.find(name), row * shape[3], TensorView(values.data(), DType::kI32, {shape[3]}));
      return values;
    };
    rows.push_back({ids("input_ids"), ids("labels")});
  }
  return pack(rows);
}

// Expected values of tests/data/make_case.py, which writes PEFT's formulas out. Bound: sums of up to 96
// products in another order, over the 50 roundings between loss and gradient.
TEST(LoraGradient, EqualsPyTorchs) {
  constexpr double kBound = 10 * 7 * 0x1.0p-24;
  for (const char* name : {"llama-wide-heads/lora", "llama-small-tied-rope3/rslora"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path adapter = reference_case(name), folder = adapter.parent_path();
    const ModelConfig base = read_model_config(folder), config = with(base, read_lora_config(adapter));
    const ParameterLayout layout = parameter_layout(config);
    AdaptedModel test(config, DType::kF32,
                      read_parameters(folder / "model.safetensors", parameter_layout(base)),
                      read_parameters(adapter / kAdapterFileName, layout));
    const PackedBatch batch = first_step(SafetensorsFile::open(folder / "batches.safetensors"));
    test.model.reserve(limits_of(batch));
    const LossSums sums = test.model.forward_backward(batch, 1 / static_cast<float>(batch.num_targets), 0,
                                                      {Update::kOverwrite, nullptr});
    const SafetensorsFile expected = SafetensorsFile::open(adapter / "expected.safetensors");
    EXPECT_NEAR(sums.loss_sum / static_cast<double>(batch.num_targets), read_values(expected, "loss")[0],
                1e-6);
    for (const Parameter& parameter : layout.parameters()) {
      const std::vector<float> values = read_values(expected, "grad." + parameter.name);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double found = test.gradients[static_cast<size_t>(parameter.offset) + i];
        difference += (found - values[i]) * (found - values[i]);
        norm += static_cast<double>(values[i]) * values[i];
      }
      EXPECT_LT(std::sqrt(difference / norm), kBound) << parameter.name;
    }
  }
}

// Micro-batches add up, recomputing changes nothing, and packed forms of the weights neither.
TEST(LoraGradient, IsTheSameInEveryMode) {
  const ModelConfig config = with(tiny_config(), all_modules(4, 8));
  const auto batch = pack(random_rows({9, 4}, config.vocab_size, kLoraSeed));
  const auto weights = random_weights(parameter_layout(tiny_config()), kScale, kLoraSeed);
  const auto adapters = random_weights(parameter_layout(config), kScale, kLoraSeed + 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<float> expected;
    for (const bool checkpointing : {false, true}) {
      for (const bool pack_weights : {false, true}) {
        AdaptedModel test(config, dtype, weights, adapters);
        ActivationLimits limits = limits_of(batch, checkpointing);
        limits.pack_weights = pack_weights;
        test.model.reserve(limits);
        test.model.forward_backward(batch, 1, 0, Update::kOverwrite);
        test.model.forward_backward(batch, 1, 0, Update::kAdd);
        const ParameterLayout layout = parameter_layout(config);
        std::vector<float> found;
        for (const Parameter& parameter : layout.parameters()) {
          const auto begin = test.gradients.begin() + parameter.offset;
          found.insert(found.end(), begin, begin + parameter.num_elements);
        }
        if (expected.empty()) expected = found;
        EXPECT_EQ(found, expected) << dtype_name(dtype) << (checkpointing ? " recomputed" : "")
                                   << (pack_weights ? " packed" : "");
      }
    }
  }
}

TEST(LoraTensorList, NamesAndShapesAreThoseOfPeft) {
  LoraConfig lora = all_modules(4, 8);
  lora.target_modules = {"q_proj", "down_proj"};
  const ModelConfig config = with(tiny_config(), lora);
  const ParameterLayout layout = parameter_layout(config);
  EXPECT_TRUE(layout.is_adapter());
  EXPECT_EQ(std::ssize(layout.groups()), config.num_hidden_layers + 2);
  EXPECT_EQ(std::ssize(layout.parameters()), 4 * config.num_hidden_layers);
  const Parameter& a = layout.at("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{4, config.intermediate_size}));
  EXPECT_EQ(a.group, 2);
  const Parameter& b = layout.at("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{config.num_attention_heads * config.head_dim, 4}));
}

std::string refusal_of(const LoraConfig& lora) {
  try {
    parameter_layout(with(tiny_config(), lora));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }
  return "accepted";
}

TEST(LoraTensorList, ATargetThatIsNoLinearLayerIsRefused) {
  LoraConfig lora = all_modules(4, 8);
  for (const char* target : {"lm_head", "embed_tokens", "self_attn", "model.layers.0", "input_layernorm"}) {
    lora.target_modules = {"q_proj", target};
    EXPECT_THAT(refusal_of(lora), testing::HasSubstr("found that it fits ")) << target;
  }
  lora.target_modules = ModuleSelection::expression(".*attn.*");
  EXPECT_THAT(refusal_of(lora), testing::HasSubstr("found that it fits model.layers.0.self_attn"));
  for (const char* target : {"proj", "layers.99.self_attn.q_proj", ".*q_proj"}) {
    lora.target_modules = {target};
    EXPECT_THAT(refusal_of(lora), testing::HasSubstr("found none of that name")) << target;
  }
  lora.target_modules = {"q_proj"};
  lora.layers_to_transform = {99};
  EXPECT_THAT(refusal_of(lora), testing::HasSubstr("that exclude_modules and layers_to_transform leave"));
}

TEST(LoraTensorList, WhatFitsNoModuleBesideOthersIsNamed) {
  LogTap tap;
  LoraConfig lora = all_modules(4, 8);
  lora.target_modules = {"q_proj", "c_attn"};
  lora.exclude_modules = {"other"};
  lora.rank_pattern = {{"k_proj", 3}};
  EXPECT_EQ(std::ssize(parameter_layout(with(tiny_config(), lora)).parameters()),
            2 * tiny_config().num_hidden_layers);
  EXPECT_THAT(tap.take(),
              testing::UnorderedElementsAre(testing::HasSubstr("target_modules: 'c_attn' has no effect"),
                                            testing::HasSubstr("exclude_modules [\"other\"] has no effect"),
                                            testing::HasSubstr("rank_pattern: 'k_proj' has no effect")));
}

}  // namespace
}  // namespace tessera
