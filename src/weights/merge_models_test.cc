#include "weights/merge_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "expect_error.h"
#include "io/file.h"
#include "model/families/families.h"
#include "test_folder.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The embedding is several pieces long.
ModelConfig merge_test_config() {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 5003;
  config.hidden_size = 72;
  config.intermediate_size = 100;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  config.sliding_window.assign(1, 0);
  return config;
}

// Element i of the flat array of model `seed`, exact in BF16.
float merge_test_weight(uint64_t seed, int64_t i) {
  return to_float(to_bf16(CounterRng(seed, 1).normal(static_cast<uint64_t>(i))));
}

fs::path write_merge_test_model(const TestFolder& folder, const char* name, uint64_t seed,
                                const ModelConfig& config = merge_test_config()) {
  const ParameterLayout layout = parameter_layout(config);
  export_model_folder(folder / name, config, layout,
                      [&](int64_t begin, std::span<float> values) {
                        for (size_t i = 0; i < values.size(); ++i)
                          values[i] = merge_test_weight(seed, begin + static_cast<int64_t>(i));
                      },
                      {});
  return folder / name;
}

std::vector<float> read_merged(const fs::path& folder, const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.num_elements));
  const SafetensorsModel model = SafetensorsModel::open(folder);
  const auto& at = model.tensors().at(parameter.name);
  at.file->read(*at.entry, 0, TensorView(values.data(), DType::kF32, Shape({parameter.num_elements})));
  return values;
}

TEST(MergeModels, LinearIsTheWeightedMeanRoundedOnce) {
  const TestFolder folder;
  const std::vector<fs::path> models = {write_merge_test_model(folder, "a", 1),
                                        write_merge_test_model(folder, "b", 2),
                                        write_merge_test_model(folder, "c", 3)};
  ThreadPool pool(3);
  merge_models(models, {.weights = {1.0, 0.6, 0.4}}, folder / "out", pool);
  const ParameterLayout layout = parameter_layout(merge_test_config());
  for (const Parameter& parameter : layout.parameters()) {
    const std::vector<float> found = read_merged(folder / "out", parameter);
    for (int64_t i = 0; i < parameter.num_elements; ++i) {
      const int64_t at = parameter.offset + i;
      const float sum =
          0.5f * merge_test_weight(1, at) + 0.3f * merge_test_weight(2, at) + 0.2f * merge_test_weight(3, at);
      ASSERT_EQ(found[static_cast<size_t>(i)], to_float(to_bf16(sum))) << parameter.name << " " << i;
    }
  }
  EXPECT_EQ(read_text_file(folder / "out/config.json"), read_text_file(folder / "a/config.json"));
}

TEST(MergeModels, SlerpFollowsTheArcOfEachTensor) {
  const TestFolder folder;
  const std::vector<fs::path> models = {write_merge_test_model(folder, "a", 1),
                                        write_merge_test_model(folder, "b", 2)};
  ThreadPool pool(2);
  merge_models(models, {.method = MergeMethod::kSlerp, .t = 0.3, .save_dtype = DType::kF32}, folder / "out",
               pool);
  const ParameterLayout layout = parameter_layout(merge_test_config());
  for (const Parameter& parameter : layout.parameters()) {
    double aa = 0, bb = 0, ab = 0;
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
      const double a = merge_test_weight(1, i), b = merge_test_weight(2, i);
      aa += a * a;
      bb += b * b;
      ab += a * b;
    }
    const double theta = std::acos(ab / std::sqrt(aa * bb));
    const std::vector<float> found = read_merged(folder / "out", parameter);
    for (int64_t i = 0; i < parameter.num_elements; ++i) {
      const double a = merge_test_weight(1, parameter.offset + i),
                   b = merge_test_weight(2, parameter.offset + i);
      const double expected = (std::sin(0.7 * theta) * a + std::sin(0.3 * theta) * b) / std::sin(theta);
      ASSERT_NEAR(found[static_cast<size_t>(i)], expected, 2e-6) << parameter.name << " " << i;
    }
  }
}

TEST(MergeModels, SlerpOfParallelTensorsIsLinear) {
  const TestFolder folder;
  const fs::path a = write_merge_test_model(folder, "a", 1);
  ThreadPool pool(2);
  merge_models({a, a}, {.method = MergeMethod::kSlerp, .t = 0.25}, folder / "out", pool);
  EXPECT_EQ(read_text_file(folder / "out/model.safetensors"), read_text_file(a / "model.safetensors"));
}

TEST(MergeModels, ASingleModelIsCopiedWithoutWhatDoesNotBelongToIt) {
  const TestFolder folder;
  const fs::path a = write_merge_test_model(folder, "a", 1);
  for (const char* name :
       {"a/tokenizer.json", "a/chat_template.jinja", "a/trainer_state.json", "a/optimizer.pt"})
    folder.write(name, name);
  folder.write("a/generation_config.json", "{\"top_k\": 3}");
  ThreadPool pool(2);
  merge_models({a}, {.weights = {1.0}}, folder / "out", pool);
  EXPECT_EQ(read_text_file(folder / "out/model.safetensors"), read_text_file(a / "model.safetensors"));
  EXPECT_EQ(read_text_file(folder / "out/generation_config.json"), "{\"top_k\": 3}");
  EXPECT_EQ(read_text_file(folder / "out/chat_template.jinja"), "a/chat_template.jinja");
  EXPECT_FALSE(fs::exists(folder / "out/trainer_state.json"));
  EXPECT_FALSE(fs::exists(folder / "out/optimizer.pt"));

  merge_models({a}, {.weights = {1.0}, .max_shard_bytes = 200'000}, folder / "shards", pool);
  EXPECT_TRUE(fs::exists(folder / "shards/model.safetensors.index.json"));
  const Parameter embedding = parameter_layout(merge_test_config()).parameters().front();
  EXPECT_EQ(read_merged(folder / "shards", embedding), read_merged(a, embedding));
}

TEST(MergeModels, ModelsThatDifferAreRefusedByTheFirstField) {
  const TestFolder folder;
  const fs::path a = write_merge_test_model(folder, "a", 1);
  ThreadPool pool(1);
  const auto refuse = [&](const ModelConfig& config, const std::vector<std::string>& fragments) {
    const fs::path b = write_merge_test_model(folder, "b", 2, config);
    expect_error(ExitCode::kBadConfig, fragments, [&] {
      merge_models({a, b}, {.weights = {1, 1}}, folder / "x", pool);
    });
  };
  ModelConfig config = merge_test_config();
  config.intermediate_size = 104;
  refuse(config, {"b/config.json: intermediate_size: expected 100", "found 104", "same shape"});
  config = merge_test_config();
  config.rope_theta = 500000;
  refuse(config, {"rope_theta: expected 10000.0", "found 500000.0"});
  EXPECT_FALSE(fs::exists(folder / "x"));

  config = merge_test_config();
  config.eos_token_ids = {7};  // matters to generation only
  config.initializer_range = 0.5;
  const fs::path b = write_merge_test_model(folder, "b", 2, config);
  merge_models({a, b}, {.weights = {1, 1}}, folder / "y", pool);
  EXPECT_TRUE(fs::exists(folder / "y/model.safetensors"));

  config.hidden_size = 96;
  folder.write("b/config.json", write_model_config(config, "bfloat16"));
  folder.write("a/config.json", write_model_config(config, "bfloat16"));
  expect_error(ExitCode::kBadData, {"embed_tokens", "[5003, 72]"}, [&] {
    merge_models({a, b}, {.weights = {1, 1}}, folder / "z", pool);
  });
}

TEST(MergeModels, AnLmHeadThatDiffersFromTiedEmbeddingsIsRefused) {
  const TestFolder folder;
  ModelConfig config = merge_test_config();
  config.tie_word_embeddings = false;
  const fs::path a = write_merge_test_model(folder, "a", 1, config);
  config.tie_word_embeddings = true;
  folder.write("a/config.json", write_model_config(config, "bfloat16"));
  ThreadPool pool(2);
  expect_error(ExitCode::kBadData, {"'lm_head.weight': expected the values of model.embed_tokens.weight"},
               [&] { merge_models({a}, {.weights = {1.0}}, folder / "out", pool); });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(MergeModels, TheTypeIsThatOfMostWeights) {
  const TestFolder folder;
  EXPECT_EQ(weights_dtype(write_merge_test_model(folder, "a", 1)), DType::kBF16);
}

}  // namespace
}  // namespace tessera
