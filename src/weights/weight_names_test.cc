// Folders whose tensors have other names, as Transformers 5.24 loads them.
#include "weights/weight_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "expect_error.h"
#include "model/families/families.h"
#include "support/weights_test_support.h"
#include "test_folder.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig two_layers(bool tied) {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 50;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.sliding_window.assign(2, 0);
  config.tie_word_embeddings = tied;
  return config;
}

class WeightNames : public testing::Test {
 protected:
  // Writes the model with other names: "" leaves a tensor out.
  void write(const ModelConfig& config, const std::function<std::string(const std::string&)>& rename,
             const std::vector<std::string>& more = {}) {
    const ParameterLayout layout = parameter_layout(config);
    flat_ = bf16_weights(layout, 3);
    std::vector<SafetensorsItem> items;
    for (const Parameter& parameter : layout.parameters()) {
      const std::string name = rename(parameter.name);
      const ConstTensorView data(flat_.data() + parameter.offset, DType::kF32, {parameter.num_elements});
      if (!name.empty()) items.push_back(make_item(name, parameter.shape, data, DType::kF32));
    }
    for (const std::string& name : more) {
      items.push_back(make_item(name, {4}, ConstTensorView(flat_.data(), DType::kF32, {4}), DType::kF32));
    }
    write_safetensors(folder_.path() / "model.safetensors", items);
  }

  std::vector<float> load(const ModelConfig& config) {
    const ParameterLayout layout = parameter_layout(config);
    std::vector<float> flat(static_cast<size_t>(layout.num_elements()));
    ThreadPool pool(1);
    load_weights(SafetensorsModel::open(folder_.path()), config, layout,
                 [&](int64_t begin, std::span<const float> values) {
                   std::copy(values.begin(), values.end(), flat.begin() + begin);
                 },
                 pool, {});
    return flat;
  }

  TestFolder folder_;
  std::vector<float> flat_;
};

std::string without_prefix(const std::string& name) {
  return name.starts_with("model.") ? name.substr(6) : name;
}

TEST_F(WeightNames, OfABackboneSavedByItselfAreFound) {
  for (const bool tied : {true, false}) {
    write(two_layers(tied), without_prefix);
    EXPECT_TRUE(load(two_layers(tied)) == flat_);
  }
  write(two_layers(true), [](const std::string& name) { return "model." + name; });
  EXPECT_TRUE(load(two_layers(true)) == flat_);
  write(two_layers(false), [](const std::string& name) {
    return name.starts_with("model.layers.0.") ? without_prefix(name) : name;
  });
  EXPECT_TRUE(load(two_layers(false)) == flat_);
  // A head that was never trained is not made up.
  write(two_layers(false),
        [](const std::string& name) { return name == kLmHeadName ? std::string() : without_prefix(name); });
  expect_error(ExitCode::kBadData, {"tensor 'lm_head.weight'", "found none"},
               [&] { load(two_layers(false)); });
}

TEST_F(WeightNames, ASharedEmbeddingMayBeSavedAsTheLmHead) {
  const auto as_head = [](const std::string& name) {
    return name == "model.embed_tokens.weight" ? std::string(kLmHeadName) : name;
  };
  write(two_layers(true), as_head);
  EXPECT_TRUE(load(two_layers(true)) == flat_);
  ModelConfig untied = two_layers(true);
  untied.tie_word_embeddings = false;
  expect_error(ExitCode::kBadData, {"tensor 'model.embed_tokens.weight'", "found none"},
               [&] { load(untied); });
}

TEST_F(WeightNames, TensorsOutsideTheModelAreIgnoredWithAWarning) {
  const auto same = [](const std::string& name) { return name; };
  LogTap tap;
  write(two_layers(true), same, {"v_head.summary.weight", "model.layers.2.mlp.up_proj.weight"});
  EXPECT_TRUE(load(two_layers(true)) == flat_);
  EXPECT_THAT(tap.take(),
              ElementsAre(HasSubstr("2 tensors ('model.layers.2.mlp.up_proj.weight', ...) not part")));
  for (const char* other : {"model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.q_norm.weight",
                            "layers.0.mlp.extra.weight", "model.norm.bias"}) {
    write(two_layers(true), same, {other});
    expect_error(ExitCode::kBadData, {std::string("tensor '") + other, "not part of the model"},
                 [&] { load(two_layers(true)); });
  }
}

ModelConfig mixture_config(const std::string& family) {
  ModelConfig config = preset_config("15m");
  config.family = family;
  config.vocab_size = 50;
  config.hidden_size = 72;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  config.sliding_window.assign(2, 0);
  config.experts = {4, 2, 36, true, 0, {true, true}};
  return config;
}

// Transformers 5 keeps the experts of a layer in two tensors, and the router of every family under one name.
TEST(FusedExperts, AreReadFromOneTensorOfALayer) {
  for (const char* family : {"qwen3_moe", "mixtral"}) {
    const ModelConfig config = mixture_config(family);
    const ParameterLayout layout = parameter_layout(config);
    const std::vector<float> flat = bf16_weights(layout, /*seed=*/11);
    const MixtureOfExperts& experts = *config.experts;
    const int64_t E = experts.num_experts, F = experts.moe_intermediate_size, D = config.hidden_size;
    std::map<std::string, std::vector<float>> fused;
    std::vector<SafetensorsItem> items;
    for (const Parameter& parameter : layout.parameters()) {
      const float* const begin = flat.data() + parameter.offset;
      const std::string layer = parameter.name.substr(0, std::string_view("model.layers.0.").size());
      if (parameter.name.find("experts.") != std::string::npos) {
        // In the order of the experts, gate before up.
        const bool is_down = parameter.shape[0] == D;
        auto& of_layer = fused[layer + "mlp.experts." + (is_down ? "down_proj" : "gate_up_proj")];
        of_layer.insert(of_layer.end(), begin, begin + parameter.num_elements);
        continue;
      }
      const bool is_router = parameter.kind == ParameterKind::kRouter;
      items.push_back(make_item(is_router ? layer + "mlp.gate.weight" : parameter.name, parameter.shape,
                                ConstTensorView(begin, DType::kF32, {parameter.num_elements}), DType::kBF16));
    }
    for (const auto& [name, values] : fused) {
      const bool is_down = name.ends_with("down_proj");
      items.push_back(make_item(name, is_down ? std::vector{E, D, F} : std::vector{E, 2 * F, D},
                                ConstTensorView(values.data(), DType::kF32, {std::ssize(values)}),
                                DType::kBF16));
    }
    const TestFolder folder;
    write_safetensors(folder / "model.safetensors", items);
    std::vector<float> loaded(flat.size());
    ThreadPool pool(2);
    const auto sink = [&](int64_t begin, std::span<const float> values) {
      std::copy(values.begin(), values.end(), loaded.begin() + begin);
    };
    load_weights(SafetensorsModel::open(folder.path()), config, layout, sink, pool);
    EXPECT_TRUE(loaded == flat) << family;
  }
}

ModelConfig gpt_oss_config() {
  ModelConfig config = mixture_config("gpt_oss");
  config.hidden_size = 64;
  config.qkv_bias = config.o_bias = config.attention_sinks = true;
  config.experts = {4, 2, 32, true, 0, {true, true}, ClampedSwiglu{}};
  return config;
}

std::vector<float> load_flat(const std::filesystem::path& folder, const ModelConfig& config) {
  const ParameterLayout layout = parameter_layout(config);
  std::vector<float> loaded(static_cast<size_t>(layout.num_elements()));
  ThreadPool pool(2);
  const auto sink = [&](int64_t begin, std::span<const float> values) {
    std::copy(values.begin(), values.end(), loaded.begin() + begin);
  };
  load_weights(SafetensorsModel::open(folder), config, layout, sink, pool);
  return loaded;
}

std::vector<float> read_tensor(const SafetensorsModel& model, const std::string& name) {
  const SafetensorsModel::Location& at = model.tensors().at(name);
  int64_t count = 1;
  for (const int64_t dim : at.entry->shape) count *= dim;
  std::vector<float> values(static_cast<size_t>(count));
  at.file->read(*at.entry, 0, TensorView(values.data(), DType::kF32, {count}));
  return values;
}

// GPT-OSS: Transformers has no names for single experts.
TEST(FusedExperts, AreWrittenAsOneTensorWhereThatIsTheName) {
  const ModelConfig config = gpt_oss_config();
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> flat = bf16_weights(layout, /*seed=*/5);
  const TestFolder folder;
  export_flat(folder.path(), config, flat);
  const SafetensorsModel model = SafetensorsModel::open(folder.path());
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  EXPECT_THAT(model.tensors().at(name).entry->shape, ElementsAre(4, 64, 64));
  EXPECT_THAT(model.tensors().at("model.layers.1.mlp.experts.down_proj").entry->shape,
              ElementsAre(4, 32, 64));
  EXPECT_THAT(model.tensors().at(name + "_bias").entry->shape, ElementsAre(4, 64));
  EXPECT_FALSE(model.tensors().contains(name + ".0"));
  const std::vector<float> saved = read_tensor(model, name);
  for (int64_t e = 0; e < 4; ++e) {
    const Parameter& slice = layout.at(slice_name(name, e));
    const auto begin = flat.begin() + slice.offset;
    EXPECT_TRUE(std::equal(begin, begin + slice.num_elements, saved.begin() + e * slice.num_elements)) << e;
  }
  EXPECT_TRUE(load_flat(folder.path(), config) == flat);
}

// The same folder with a matrix of every expert of a layer in MXFP4.
void write_mxfp4(const TestFolder& from, const TestFolder& to, std::vector<int64_t> blocks_shape,
                 const std::string& scales_suffix) {
  const SafetensorsModel model = SafetensorsModel::open(from.path());
  static const std::vector<uint8_t> blocks(4 * 64 * 2 * 16, 0x2a), scales(4 * 64 * 2, 126);
  std::vector<SafetensorsItem> items;
  std::map<std::string, std::vector<float>> kept;
  for (const auto& [name, at] : model.tensors()) {
    if (name != "model.layers.0.mlp.experts.gate_up_proj") {
      const std::vector<float>& values = kept[name] = read_tensor(model, name);
      items.push_back(make_item(name, at.entry->shape,
                                ConstTensorView(values.data(), DType::kF32, {std::ssize(values)}),
                                DType::kBF16));
      continue;
    }
    items.push_back(make_item(name + "_blocks", blocks_shape,
                              ConstTensorView(blocks.data(), DType::kU8, {std::ssize(blocks)}), DType::kU8));
    items.push_back(make_item(name + scales_suffix, {4, 64, 2},
                              ConstTensorView(scales.data(), DType::kU8, {std::ssize(scales)}), DType::kU8));
  }
  write_safetensors(to / "model.safetensors", items);
}

// Every byte 0x2a: -1 first, then 1, times 2^-1.
TEST(FusedExperts, AreReadFromCodesInMxfp4) {
  const ModelConfig config = gpt_oss_config();
  const ParameterLayout layout = parameter_layout(config);
  std::vector<float> flat = bf16_weights(layout, /*seed=*/5);
  const TestFolder numbers, codes;
  export_flat(numbers.path(), config, flat);
  write_mxfp4(numbers, codes, {4, 64, 2, 16}, "_scales");
  for (int64_t e = 0; e < 4; ++e) {
    const Parameter& slice = layout.at(slice_name("model.layers.0.mlp.experts.gate_up_proj", e));
    for (int64_t i = 0; i < slice.num_elements; ++i)
      flat[static_cast<size_t>(slice.offset + i)] = i / 64 % 2 == 0 ? -0.5f : 0.5f;
  }
  EXPECT_TRUE(load_flat(codes.path(), config) == flat);
}

TEST(FusedExperts, RefuseCodesOfAnotherShapeOrWithoutScales) {
  const ModelConfig config = gpt_oss_config();
  const TestFolder numbers, codes;
  export_flat(numbers.path(), config, bf16_weights(parameter_layout(config), /*seed=*/5));
  write_mxfp4(numbers, codes, {4, 32, 4, 16}, "_scales");
  expect_error(ExitCode::kBadData, {"gate_up_proj_blocks", "[4, 64, 2, 16]", "[4, 32, 4, 16]"},
               [&] { load_flat(codes.path(), config); });
  write_mxfp4(numbers, codes, {4, 64, 2, 16}, "_scale");
  expect_error(ExitCode::kBadData, {"tensor 'model.layers.0.mlp.experts.gate_up_proj'", "found none"},
               [&] { load_flat(codes.path(), config); });
}

}  // namespace
}  // namespace tessera
