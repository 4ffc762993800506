#include "weights/export_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <map>

#include "base/rng.h"
#include "expect_error.h"
#include "formats/huggingface/convert.h"
#include "io/disk_space.h"
#include "io/file.h"
#include "model/families/families.h"
#include "support/weights_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The embedding and q_proj are read in several pieces; rows of 96 elements do not divide these.
ModelConfig gguf_test_config() {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 3001;
  config.hidden_size = 96;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 30;
  config.num_key_value_heads = 3;
  config.head_dim = 50;
  config.sliding_window.assign(2, 0);
  config.tie_word_embeddings = false;
  config.qkv_bias = config.o_bias = true;
  return config;
}

constexpr uint64_t kGgufWeightSeed = 3;

// The value that bf16_weights() has.
float gguf_test_weight(const Parameter& parameter, int64_t i) {
  return to_float(
      to_bf16(CounterRng(kGgufWeightSeed, hash_name(parameter.name)).normal(static_cast<uint64_t>(i))));
}

void write_gguf_test_model(const fs::path& folder, const ModelConfig& config, float scale = 1,
                           DType dtype = DType::kBF16) {
  std::vector<float> flat = bf16_weights(parameter_layout(config), kGgufWeightSeed);
  for (float& weight : flat) weight *= scale;
  export_flat(folder, config, flat, {.save_dtype = dtype});
}

// The tensors of a GGUF file by name, as float32.
std::map<std::string, std::vector<float>> read_gguf_tensors(const fs::path& path) {
  const std::string bytes = read_text_file(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const GgufTensor& tensor : read_gguf(path).tensors) {
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data()) + tensor.offset_bytes;
    std::vector<float>& values = tensors[tensor.name];
    if (tensor.type == &ggml_type(GgmlType::kQ8_0)) {
      for (int64_t block = 0; block < tensor.size_bytes / 34; ++block, data += 34) {
        f16 scale;
        std::memcpy(&scale, data, 2);
        for (int i = 2; i < 34; ++i)
          values.push_back(to_float(scale) * static_cast<float>(static_cast<int8_t>(data[i])));
      }
      continue;
    }
    const DType dtype = tensor.type == &ggml_type(GgmlType::kBF16)  ? DType::kBF16
                        : tensor.type == &ggml_type(GgmlType::kF16) ? DType::kF16
                                                                    : DType::kF32;
    values.resize(static_cast<size_t>(tensor.size_bytes / dtype_bytes(dtype)));
    convert_elements(dtype, data, DType::kF32, reinterpret_cast<std::byte*>(values.data()),
                     std::ssize(values));
  }
  return tensors;
}

class ExportGgufTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ExportGgufTest, EveryElementIsAtItsPlace) {
  const TestFolder folder;
  const ModelConfig config = gguf_test_config();
  write_gguf_test_model(folder / "m", config);
  ThreadPool pool(3);
  const auto type = static_cast<GgmlType>(GetParam());
  export_gguf(folder / "m", config, {.type = type}, folder / "m.gguf", pool);
  auto tensors = read_gguf_tensors(folder / "m.gguf");
  const ParameterLayout layout = parameter_layout(config);
  EXPECT_EQ(tensors.size(), layout.parameters().size());
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m", "m.gguf"}));

  const auto find = [&](const char* name) { return &layout.at(name); };
  const Parameter* ordered[] = {find("model.embed_tokens.weight"),
                                find("model.layers.1.self_attn.v_proj.weight"),
                                find("model.layers.0.mlp.down_proj.weight"),
                                find("lm_head.weight"),
                                find("model.layers.1.self_attn.o_proj.bias"),
                                find("model.norm.weight")};
  const char* names[] = {"token_embd.weight", "blk.1.attn_v.weight",    "blk.0.ffn_down.weight",
                         "output.weight",     "blk.1.attn_output.bias", "output_norm.weight"};
  const float tolerance = type == GgmlType::kQ8_0 ? 0.02f : type == GgmlType::kF16 ? 1e-6f : 0.0f;
  for (size_t n = 0; n < std::size(names); ++n) {
    const std::vector<float>& found = tensors.at(names[n]);
    ASSERT_EQ(std::ssize(found), ordered[n]->num_elements) << names[n];
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], gguf_test_weight(*ordered[n], static_cast<int64_t>(i)), tolerance)
          << names[n] << " " << i;
  }
  // Rows 0, 25, 1, 26, ... of each head of 50.
  for (const bool is_bias : {false, true}) {
    const char* suffix = is_bias ? "bias" : "weight";
    const int64_t columns = is_bias ? 1 : 96;
    const Parameter& parameter = layout.at(fmt::format("model.layers.1.self_attn.q_proj.{}", suffix));
    const std::vector<float>& found = tensors.at(fmt::format("blk.1.attn_q.{}", suffix));
    for (int64_t i = 0; i < std::ssize(found); ++i) {
      const int64_t row = i / columns, head = row / 50, in_head = row % 50;
      const int64_t from = (head * 50 + in_head / 2 + in_head % 2 * 25) * columns + i % columns;
      ASSERT_NEAR(found[static_cast<size_t>(i)], gguf_test_weight(parameter, from), tolerance)
          << suffix << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExportGgufTest, testing::Values(0, 1, 30, 8),
                         [](const auto& param) { return find_ggml_type(param.param)->name; });

// Expert 2 of Mixtral's, and GPT-OSS's alternating columns of gate and up, [in, out] in Hugging Face's files.
TEST_P(ExportGgufTest, ExpertsAreAtTheirPlaces) {
  ModelConfig config = gguf_test_config();
  config.family = "mixtral";
  config.qkv_bias = config.o_bias = false;
  config.experts = {3, 2, config.intermediate_size, true, 0, {true, true}};
  ModelConfig fused = gguf_test_config();
  fused.family = "gpt_oss";
  fused.attention_sinks = true;
  fused.sliding_window = {32, 0};
  fused.experts = {3, 2, fused.intermediate_size, true, 0, {true, true}, ClampedSwiglu{}};
  const int64_t D = config.hidden_size, F = config.intermediate_size;
  const auto type = static_cast<GgmlType>(GetParam());
  const float tolerance = type == GgmlType::kQ8_0 ? 0.02f : type == GgmlType::kF16 ? 1e-6f : 0.0f;
  ThreadPool pool(3);
  const TestFolder folder;
  write_gguf_test_model(folder / "m", config);
  export_gguf(folder / "m", config, {.type = type}, folder / "m.gguf", pool);
  auto tensors = read_gguf_tensors(folder / "m.gguf");
  const ParameterLayout layout = parameter_layout(config);
  const Parameter& down = layout.at("model.layers.1.block_sparse_moe.experts.2.w2.weight");
  for (int64_t i = 0; i < D * F; ++i)
    ASSERT_NEAR(tensors.at("blk.1.ffn_down_exps.weight")[static_cast<size_t>(2 * D * F + i)],
                gguf_test_weight(down, i), tolerance);
  const Parameter& router = layout.at("model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_EQ(tensors.at("blk.0.ffn_gate_inp.weight")[5], gguf_test_weight(router, 5));

  write_gguf_test_model(folder / "g", fused);
  export_gguf(folder / "g", fused, {.type = type}, folder / "g.gguf", pool);
  tensors = read_gguf_tensors(folder / "g.gguf");
  const ParameterLayout fused_layout = parameter_layout(fused);
  const std::string experts = "model.layers.1.mlp.experts.";
  const Parameter& gate_up = fused_layout.at(experts + "gate_up_proj.2");
  const Parameter& bias = fused_layout.at(experts + "gate_up_proj_bias");
  for (const int64_t part : {0, 1}) {
    const std::string name = part == 0 ? "blk.1.ffn_gate_exps" : "blk.1.ffn_up_exps";
    const std::vector<float>& found = tensors.at(name + ".weight");
    for (int64_t row = 0; row < F; ++row) {
      EXPECT_EQ(tensors.at(name + ".bias")[static_cast<size_t>(2 * F + row)],
                gguf_test_weight(bias, 4 * F + 2 * row + part));
      for (int64_t column = 0; column < D; ++column)
        ASSERT_NEAR(found[static_cast<size_t>((2 * F + row) * D + column)],
                    gguf_test_weight(gate_up, column * 2 * F + 2 * row + part), tolerance);
    }
  }
  const Parameter& fused_down = fused_layout.at(experts + "down_proj.2");
  EXPECT_NEAR(tensors.at("blk.1.ffn_down_exps.weight")[static_cast<size_t>(2 * D * F + 3 * F + 7)],
              gguf_test_weight(fused_down, 7 * D + 3), tolerance);
}

TEST(ExportGguf, TiedModelsHaveNoOutputAndLlama3ScalingHasDivisors) {
  const TestFolder folder;
  ModelConfig config = gguf_test_config();
  config.tie_word_embeddings = true;
  config.rope_scaling = {.type = RopeType::kLlama3, .factor = 8};
  write_gguf_test_model(folder / "m", config);
  ThreadPool pool(1);
  export_gguf(folder / "m", config, {.fields = {{"general.name", GgufScalar(std::string("x"))}}},
              folder / "m.gguf", pool);
  const auto tensors = read_gguf_tensors(folder / "m.gguf");
  EXPECT_FALSE(tensors.contains("output.weight"));
  ASSERT_EQ(tensors.at("rope_freqs.weight").size(), 25u);
  EXPECT_EQ(tensors.at("rope_freqs.weight").back(), 8.0f);
  const GgufContent content = read_gguf(folder / "m.gguf");
  EXPECT_TRUE(
      std::ranges::any_of(content.fields, [](const GgufField& f) { return f.key == "general.name"; }));
  EXPECT_TRUE(std::ranges::any_of(content.fields, [](const GgufField& f) {
    return f.key == "general.file_type" && std::get<GgufScalar>(f.value) == GgufScalar(uint32_t{32});
  }));
}

TEST(ExportGguf, RowsThatQ8CannotHoldBecomeF16) {
  const TestFolder folder;
  ModelConfig config = gguf_test_config();
  config.intermediate_size = 70;
  write_gguf_test_model(folder / "m", config);
  ThreadPool pool(1);
  export_gguf(folder / "m", config, {.type = GgmlType::kQ8_0}, folder / "m.gguf", pool);
  for (const GgufTensor& tensor : read_gguf(folder / "m.gguf").tensors) {
    const std::string expected = tensor.shape.size() == 1    ? "F32"
                                 : tensor.shape[0] % 32 == 0 ? "Q8_0"
                                                             : "F16";
    EXPECT_EQ(tensor.type->name, expected) << tensor.name;
  }
}

TEST(ExportGguf, AFailureLeavesNothingBehind) {
  const TestFolder folder;
  const ModelConfig config = gguf_test_config();
  write_gguf_test_model(folder / "m", config, 1e5f, DType::kF32);
  folder.write("m.gguf", "old");
  ThreadPool pool(2);
  expect_error(ExitCode::kNumerics, {"element", "F16", "save as BF16"},
               [&] { export_gguf(folder / "m", config, {.type = GgmlType::kF16}, folder / "m.gguf", pool); });
  EXPECT_EQ(folder.names(), (std::set<std::string>{"m", "m.gguf"}));
  EXPECT_EQ(read_text_file(folder / "m.gguf"), "old");
  ModelConfig other = config;
  other.vocab_size = 3000;
  expect_error(ExitCode::kBadData, {"embed_tokens", "3001"},
               [&] { export_gguf(folder / "m", other, {}, folder / "m.gguf", pool); });
  expect_error(ExitCode::kIoError, {"absent"},
               [&] { export_gguf(folder / "m", config, {}, folder / "absent/m.gguf", pool); });
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ExitCode::kIoError, {"pipe", "is a device, pipe or socket"},
               [&] { export_gguf(folder / "m", config, {}, folder / "pipe", pool); });
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(DiskSpace, TooLittleIsSaidBeforeAnythingIsWritten) {
  const TestFolder folder;
  check_disk_space(folder / "a/b/file", 1);
  expect_error(ExitCode::kIoError, {"file", "free disk space", "8.00 EiB"},
               [&] { check_disk_space(folder / "a/b/file", std::numeric_limits<int64_t>::max()); });
}

}  // namespace
}  // namespace tessera
