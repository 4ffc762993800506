#include "formats/inspect/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "formats/safetensors/safetensors.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<float> kValues(2048, 1.0f);

std::vector<SafetensorsItem> two_items() {
  const auto view = [](Shape shape) { return ConstTensorView(kValues.data(), DType::kF32, shape); };
  return {make_item("model.embed_tokens.weight", {32, 64}, view({32, 64}), DType::kBF16),
          make_item("scale", {}, view({}), DType::kF32)};
}

TEST(Inspect, ListsTensorsTypesShapesAndTotals) {
  const TestFolder folder;
  write_safetensors(folder / "a.safetensors", two_items(), {{"format", "pt"}});
  EXPECT_EQ(inspect(folder / "a.safetensors"),
            (folder / "a.safetensors").native() +
                "\n"
                "metadata format: pt\n"
                "scale                      F32   []             4 B\n"
                "model.embed_tokens.weight  BF16  [32, 64]  4.00 KiB\n"
                "\n"
                "2 tensors in 1 file, 2,049 parameters (2,048 BF16, 1 F32), 4.00 KiB\n");
}

TEST(Inspect, JsonHasTensorsMetadataAndTotals) {
  const TestFolder folder;
  write_safetensors(folder / "a.safetensors", two_items(), {{"format", "pt"}});
  const auto json = nlohmann::json::parse(inspect_json(folder / "a.safetensors"));
  EXPECT_TRUE(json["config"].is_null());
  EXPECT_EQ(json["metadata"]["format"], "pt");
  EXPECT_EQ(json["num_elements"], 2049);
  EXPECT_EQ(json["bytes"], 4100);
  ASSERT_EQ(json["tensors"].size(), 2u);
  EXPECT_EQ(json["tensors"][1],
            nlohmann::json::parse(R"({"name": "model.embed_tokens.weight", "dtype": "BF16",
    "shape": [32, 64], "file": "a.safetensors", "num_elements": 2048, "bytes": 4096})"));
}

TEST(Inspect, JsonOfAFolderHasItsConfig) {
  const TestFolder folder;
  ModelConfig config = preset_config("15m");
  config.vocab_size = 100;
  folder.write("config.json", write_model_config(config, "bfloat16"));
  const auto json = nlohmann::json::parse(inspect_json(folder.path()));
  EXPECT_EQ(json["config"]["hidden_size"], config.hidden_size);
  EXPECT_TRUE(json["tensors"].empty());
}

TEST(Inspect, IntegersAreNoParameters) {
  const TestFolder folder;
  const std::vector<int64_t> ids(6);
  write_safetensors(
      folder / "ids.safetensors",
      {make_item("input_ids", {2, 3}, ConstTensorView(ids.data(), DType::kI64, {6}), DType::kI64)});
  EXPECT_THAT(inspect(folder / "ids.safetensors"), HasSubstr("1 tensor in 1 file, 6 elements (6 I64), 48 B"));
}

TEST(Inspect, SummarisesAModelFolder) {
  const TestFolder folder;
  ModelConfig config = preset_config("llama3.2-1b");
  folder.write("config.json", write_model_config(config, "bfloat16"));
  EXPECT_THAT(
      inspect(folder.path()),
      AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("32 query, 8 key-value, 64 elements each"),
            HasSubstr("128,256, tied embeddings"), HasSubstr("theta 500000, llama3 scaling by 32 from 8,192"),
            HasSubstr("no weights in this folder")));
  write_safetensors_model(folder.path(), two_items(), 4);
  EXPECT_THAT(inspect(folder.path()),
              AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("model-00001-of-00002.safetensors"),
                    HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("2 tensors in 2 files"),
                    Not(HasSubstr("no weights"))));
}

TEST(Inspect, SaysWhatAModelHasBesides) {
  const TestFolder folder;
  ModelConfig config = preset_config("15m");
  config.vocab_size = 100;
  config.family = "qwen3";
  config.qkv_bias = config.o_bias = config.qk_norm = true;
  config.sliding_window.back() = 4096;
  folder.write("config.json", write_model_config(config, "bfloat16"));
  EXPECT_THAT(inspect(folder.path()),
              AllOf(HasSubstr("Qwen3ForCausalLM"), HasSubstr("q/k/v bias, o bias, q/k norm"),
                    HasSubstr("4,096 tokens in 1 of 8 layers")));
}

TEST(Inspect, AFolderWithNeitherIsRefused) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput, {folder.path().native(), "no weights"}, [&] { inspect(folder.path()); });
  expect_error(ExitCode::kNoInput, {"absent"}, [&] { inspect(folder / "absent"); });
}

}  // namespace
}  // namespace tessera
