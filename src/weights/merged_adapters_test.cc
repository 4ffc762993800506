#include "weights/merged_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "expect_error.h"
#include "formats/json.h"
#include "io/file.h"
#include "model/families/families.h"
#include "test_folder.h"
#include "weights/export_gguf.h"
#include "weights/merge_models.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

ModelConfig adapter_test_config(int64_t hidden_size = 72) {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 50;
  config.hidden_size = hidden_size;
  config.intermediate_size = 100;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  config.sliding_window.assign(2, 0);
  return config;
}

float adapter_test_weight(uint64_t seed, int64_t i) {
  return static_cast<float>(CounterRng(seed, 1).normal(static_cast<uint64_t>(i)));
}

// A model, or with config.lora an adapter.
fs::path write_adapter_test_folder(const fs::path& folder, const ModelConfig& config, uint64_t seed) {
  export_model_folder(folder, config, parameter_layout(config),
                      [&](int64_t begin, std::span<float> values) {
                        for (size_t i = 0; i < values.size(); ++i)
                          values[i] = adapter_test_weight(seed, begin + static_cast<int64_t>(i));
                      },
                      {.save_dtype = DType::kF32});
  return folder;
}

std::vector<ModelConfig> adapted_test_configs() {
  LoraConfig plain;
  plain.r = 3;
  plain.lora_alpha = 6;
  plain.target_modules = lora_module_names();
  LoraConfig other;
  other.r = 2;
  other.lora_alpha = 5;
  other.use_rslora = true;
  other.target_modules = {"q_proj", "layers.1.mlp.down_proj"};
  other.rank_pattern = {{"down_proj", 5}};
  std::vector<ModelConfig> configs(2, adapter_test_config());
  configs[0].lora = plain;
  configs[1].lora = other;
  return configs;
}

// Ranges of 1000 elements begin and end inside rows. Bound: float32 sums of at most 3 + 5 products.
TEST(MergedAdapters, AddEveryAdapterOfAModule) {
  const TestFolder folder;
  const std::vector<ModelConfig> configs = adapted_test_configs();
  const std::vector<fs::path> adapters = {write_adapter_test_folder(folder / "a", configs[0], 1),
                                          write_adapter_test_folder(folder / "b", configs[1], 2)};
  ThreadPool pool(1);
  const MergedAdapters merged(adapters, adapter_test_config(), pool);
  const ParameterLayout weights = parameter_layout(adapter_test_config());
  const ParameterLayout layouts[] = {parameter_layout(configs[0]), parameter_layout(configs[1])};
  for (const Parameter& parameter : weights.parameters()) {
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    const int64_t K = parameter.shape.back();
    for (int64_t begin = 0; begin < parameter.num_elements; begin += 1000) {
      std::vector<float> values(static_cast<size_t>(std::min<int64_t>(1000, parameter.num_elements - begin)),
                                0.25f);
      merged.add(parameter, begin, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t row = (begin + static_cast<int64_t>(i)) / K,
                      column = (begin + static_cast<int64_t>(i)) % K;
        double expected = 0.25, magnitude = 0.25;
        for (size_t n = 0; n < configs.size(); ++n) {
          const std::optional<LoraModule> lora = configs[n].lora->adapter_of(module);
          if (!lora || parameter.shape.size() != 2) continue;
          const ParameterLayout& layout = layouts[n];
          for (int64_t k = 0; k < lora->rank; ++k) {
            const double a =
                adapter_test_weight(n + 1, layout.at(lora_a_name(module)).offset + k * K + column);
            const double b =
                adapter_test_weight(n + 1, layout.at(lora_b_name(module)).offset + row * lora->rank + k);
            expected += lora->scale * b * a;
            magnitude += std::abs(lora->scale * b * a);
          }
        }
        ASSERT_NEAR(values[i], expected, 12 * 0x1p-24 * magnitude)
            << parameter.name << " " << row << " " << column;
      }
    }
  }
}

TEST(MergedAdapters, GiveTheSameModelInEveryFormat) {
  const TestFolder folder;
  const fs::path model = write_adapter_test_folder(folder / "model", adapter_test_config(), 5);
  const std::vector<ModelConfig> configs = adapted_test_configs();
  const std::vector<fs::path> adapters = {write_adapter_test_folder(folder / "a", configs[0], 1),
                                          write_adapter_test_folder(folder / "b", configs[1], 2)};
  ThreadPool pool(3);
  merge_models({model}, {.weights = {1}, .adapters = adapters, .save_dtype = DType::kF32}, folder / "merged",
               pool);
  const ModelConfig config = read_model_config(model);
  export_gguf(folder / "merged", config, {.type = GgmlType::kF32}, folder / "expected.gguf", pool);
  export_gguf(model, config, {.type = GgmlType::kF32, .adapters = adapters}, folder / "found.gguf", pool);
  EXPECT_EQ(read_text_file(folder / "found.gguf"), read_text_file(folder / "expected.gguf"));
}

TEST(MergedAdapters, BringTheEndOfTheirAnswersIntoTheModel) {
  const TestFolder folder;
  const fs::path model = write_adapter_test_folder(folder / "model", adapter_test_config(), 5);
  folder.write("model/generation_config.json", R"({"top_k": 3})");
  const ModelConfig config = adapted_test_configs()[0];
  const WeightSource zeros = [](int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); };
  ExportOptions options = {.generation_config = model / "generation_config.json"};
  const auto merged_with = [&](const char* name) {
    export_model_folder(folder / name, config, parameter_layout(config), zeros, options);
    ThreadPool pool(1);
    const fs::path merged = folder / fmt::format("{}-merged", name);
    merge_models({model}, {.weights = {1}, .adapters = {folder / name}}, merged, pool);
    return Json::parse(read_text_file(merged / "generation_config.json")).dump();
  };
  EXPECT_EQ(merged_with("plain"), R"({"top_k":3})");
  options.end_of_answer = 7;
  EXPECT_EQ(merged_with("chat"), R"({"eos_token_id":[7],"top_k":3})");
}

TEST(MergedAdapters, ThatDoNotFitOrAreDamagedAreRefused) {
  const TestFolder folder;
  const fs::path adapter = write_adapter_test_folder(folder / "a", adapted_test_configs()[0], 1);
  ThreadPool pool(1);
  const auto open = [&](const ModelConfig& model) { const MergedAdapters adapters({adapter}, model, pool); };
  expect_error(ExitCode::kBadData, {"q_proj.lora_A.weight", "expected shape [3, 48]", "found [3, 72]"},
               [&] { open(adapter_test_config(48)); });
  ModelConfig deeper = adapter_test_config();
  deeper.num_hidden_layers = 3;
  deeper.sliding_window.assign(3, 0);
  expect_error(ExitCode::kBadData, {"layers.2.", "expected by adapter_config.json, found none"},
               [&] { open(deeper); });
  const fs::path file = adapter / kAdapterFileName;
  fs::resize_file(file, 1000);
  expect_error(ExitCode::kBadData, {file.native(), "header length"}, [&] { open(adapter_test_config()); });
  fs::rename(file, adapter / "adapter_model.bin");
  expect_error(ExitCode::kNoInput, {"found only adapter_model.bin (convert it to safetensors)"},
               [&] { open(adapter_test_config()); });
}

}  // namespace
}  // namespace tessera
