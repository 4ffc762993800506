#include "weights/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "formats/json.h"
#include "io/file.h"
#include "model/families/families.h"
#include "support/weights_test_support.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kWeightSeed = 11;

// Every kind of parameter with sizes that are not powers of two; the embedding is read in several pieces.
ModelConfig small_config(const std::string& family = "llama") {
  ModelConfig config = preset_config("15m");
  config.family = family;
  config.vocab_size = 5003;
  config.hidden_size = 72;
  config.intermediate_size = 100;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  config.sliding_window.assign(2, 0);
  config.tie_word_embeddings = false;
  if (family == "llama") config.qkv_bias = config.o_bias = config.mlp_bias = true;
  if (family == "qwen2") config.qkv_bias = true;
  if (family == "qwen3" || family == "qwen3_moe") config.qk_norm = true;
  if (family == "mixtral") config.experts = {3, 2, config.intermediate_size, true, 0, {true, true}};
  if (family == "qwen3_moe") config.experts = {4, 2, 36, true, 0, {true, true}};
  return config;
}

std::vector<float> load_all(const fs::path& path, const ModelConfig& config, int64_t num_threads = 2,
                            const LoadOptions& options = {}) {
  const ParameterLayout layout = parameter_layout(config);
  std::vector<float> flat(static_cast<size_t>(layout.num_elements()));
  ThreadPool pool(num_threads);
  const auto sink = [&](int64_t begin, std::span<const float> values) {
    std::copy(values.begin(), values.end(), flat.begin() + begin);
  };
  load_weights(SafetensorsModel::open(path), config, layout, sink, pool, options);
  return flat;
}

TEST(ModelFolder, EveryFamilyComesBackInEveryTypeAndNumberOfShards) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"}) {
    const ModelConfig config = small_config(family);
    const std::vector<float> flat = bf16_weights(parameter_layout(config), kWeightSeed);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t max_shard_bytes : {int64_t{1} << 40, int64_t{200'000}}) {
        const TestFolder folder;
        export_flat(folder.path(), config, flat, {.save_dtype = dtype, .max_shard_bytes = max_shard_bytes});
        const ModelConfig read = read_model_config(folder.path());
        EXPECT_TRUE(load_all(folder.path(), read, 1) == flat) << family << dtype_name(dtype);
        EXPECT_TRUE(load_all(folder.path(), read, 3) == flat) << family << dtype_name(dtype);
        const Json json = parse_json(read_text_file(folder / "config.json"), "config.json");
        EXPECT_EQ(json["torch_dtype"], dtype == DType::kBF16 ? "bfloat16" : "float32");
      }
    }
  }
}

TEST(LoadWeights, ReportsProgressUpToOne) {
  const ModelConfig config = small_config();
  const TestFolder folder;
  export_flat(folder.path(), config, bf16_weights(parameter_layout(config), kWeightSeed));
  std::vector<double> fractions;
  LoadProgress last;
  LoadOptions options;
  options.progress = [&](const LoadProgress& progress) {
    fractions.push_back(progress.fraction());
    last = progress;
  };
  load_all(folder.path(), config, 2, options);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_GT(fractions.size(), 10u);
  EXPECT_EQ(fractions.back(), 1.0);
  EXPECT_EQ(last.bytes_done, parameter_layout(config).num_parameters() * 2);
  EXPECT_GT(last.bytes_per_second(), 0);
}

TEST(LoadWeights, RangesReadTheirElementsAndNothingElse) {
  const ModelConfig config = small_config();
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> flat = bf16_weights(layout, kWeightSeed);
  const int64_t count = layout.num_elements();
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const TestFolder folder;
    export_flat(folder.path(), config, flat, {.save_dtype = dtype, .max_shard_bytes = 200'000});
    // Across tensors, inside one, one element, empty.
    const std::vector<ElementRange> ranges = {
        {0, 7}, {7, 7}, {1000, 1001}, {5003 * 72 - 3, 5003 * 72 + 90}, {count / 2, count - 11}};
    std::vector<float> expected(flat.size());
    for (const ElementRange& range : ranges)
      std::copy(flat.begin() + range.begin, flat.begin() + range.end, expected.begin() + range.begin);
    LoadOptions options;
    options.ranges = ranges;
    int64_t num_bytes = 0;
    options.progress = [&](const LoadProgress& progress) { num_bytes = progress.bytes_total; };
    EXPECT_TRUE(load_all(folder.path(), config, 3, options) == expected) << dtype_name(dtype);
    EXPECT_LT(num_bytes, count * dtype_bytes(dtype) * 6 / 10);
    options.ranges = std::span<const ElementRange>();
    EXPECT_TRUE(load_all(folder.path(), config, 3, options) == std::vector<float>(flat.size()));
  }
}

// Destination spans may end anywhere.
TEST(LoadWeights, Bf16TensorsAreReadInPlaceAndOthersReachTheSink) {
  const ModelConfig config = small_config();
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> flat = bf16_weights(layout, kWeightSeed);
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    const TestFolder folder;
    export_flat(folder.path(), config, flat, {.save_dtype = dtype});
    std::vector<float> expected = load_all(folder.path(), config);
    std::vector<bf16> found(flat.size());
    LoadOptions options;
    options.bf16_destination = [&](int64_t begin, int64_t count) {
      return std::span(found).subspan(static_cast<size_t>(begin),
                                      static_cast<size_t>(std::min(count, 1000 - begin % 1000)));
    };
    const std::vector<float> through_float = load_all(folder.path(), config, 3, options);
    if (dtype != DType::kBF16) {
      EXPECT_TRUE(through_float == expected) << dtype_name(dtype);
      std::fill(expected.begin(), expected.end(), 0.0f);
    } else {
      EXPECT_TRUE(through_float == std::vector<float>(flat.size()));
    }
    for (size_t i = 0; i < flat.size(); ++i) ASSERT_EQ(to_float(found[i]), expected[i]) << i;
  }
}

TEST(LoadWeights, FindsValuesThatAreNotFiniteInItsRangesInEveryType) {
  const ModelConfig config = small_config();
  const ParameterLayout layout = parameter_layout(config);
  const Parameter& bad = layout.at("model.layers.1.mlp.up_proj.weight");
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const float value :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> flat = bf16_weights(layout, kWeightSeed);
      flat[static_cast<size_t>(bad.offset + 5)] = value;
      const TestFolder folder;
      write_safetensors(folder / "model.safetensors", [&] {
        std::vector<SafetensorsItem> items;
        for (const Parameter& parameter : layout.parameters())
          items.push_back(make_item(
              parameter.name, parameter.shape,
              ConstTensorView(flat.data() + parameter.offset, DType::kF32, Shape(parameter.shape)), dtype));
        return items;
      }());
      const auto load = [&](ElementRange range) {
        LoadOptions options;
        options.ranges = std::span(&range, 1);
        std::vector<bf16> loaded(flat.size());
        options.bf16_destination = [&](int64_t begin, int64_t count) {
          return std::span(loaded).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
        };
        load_all(folder / "model.safetensors", config, 2, options);
      };
      load({0, bad.offset + 5});
      load({bad.offset + 6, layout.num_elements()});
      expect_error(ExitCode::kBadData, {"model.safetensors", bad.name, "expected finite weights, found 1 of"},
                   [&] {
                     load({bad.offset + 5, bad.offset + 6});
                   });
    }
  }
}

TEST(LoadWeights, AFileThatEndsEarlyIsNamed) {
  const ModelConfig config = small_config();
  const TestFolder folder;
  export_flat(folder.path(), config, bf16_weights(parameter_layout(config), kWeightSeed));
  const fs::path path = folder / "model.safetensors";
  const SafetensorsModel model = SafetensorsModel::open(path);
  fs::resize_file(path, fs::file_size(path) / 2);
  const ParameterLayout layout = parameter_layout(config);
  ThreadPool pool(3);
  expect_error(ExitCode::kBadData, {"model.safetensors"}, [&] {
    load_weights(
        model, config, layout, [](int64_t, std::span<const float>) {}, pool);
  });
}

// A model folder's tensors as items that can be modified before writing.
class Tensors {
 public:
  explicit Tensors(const ModelConfig& config)
      : layout_(parameter_layout(config)), flat_(bf16_weights(layout_, kWeightSeed)) {
    for (const Parameter& parameter : layout_.parameters())
      set(parameter.name, parameter.shape, at(parameter.name));
  }
  float* at(const std::string& name) { return flat_.data() + layout_.at(name).offset; }
  void set(const std::string& name, const std::vector<int64_t>& shape, const float* data,
           DType dtype = DType::kBF16) {
    erase(name);
    items_.push_back(make_item(name, shape, ConstTensorView(data, DType::kF32, Shape(shape)), dtype));
  }
  void erase(const std::string& name) {
    std::erase_if(items_, [&](const SafetensorsItem& item) { return item.name == name; });
  }
  fs::path write(const TestFolder& folder) const {
    write_safetensors(folder / "model.safetensors", items_);
    return folder / "model.safetensors";
  }
  const std::vector<float>& flat() const { return flat_; }

 private:
  ParameterLayout layout_;
  std::vector<float> flat_;
  std::vector<SafetensorsItem> items_;
};

void expect_refused(const Tensors& tensors, const ModelConfig& config, std::vector<std::string> fragments) {
  const TestFolder folder;
  const fs::path path = tensors.write(folder);
  fragments.push_back(path.native());
  expect_error(ExitCode::kBadData, fragments, [&] { load_all(path, config); });
}

TEST(LoadWeights, AcceptsAnyFloatType) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  const std::string wide = "model.layers.0.mlp.up_proj.weight";
  tensors.set(wide, {100, 72}, tensors.at(wide), DType::kF64);
  tensors.set("model.norm.weight", {72}, tensors.at("model.norm.weight"), DType::kF32);
  const TestFolder folder;
  EXPECT_TRUE(load_all(tensors.write(folder), config) == tensors.flat());
}

TEST(LoadWeights, NamesAMissingTensor) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  tensors.erase("model.layers.1.self_attn.k_proj.bias");
  expect_refused(tensors, config,
                 {"tensor 'model.layers.1.self_attn.k_proj.bias': expected by config.json, found none"});
}

TEST(LoadWeights, NamesAnExtraTensor) {
  ModelConfig config = small_config();
  const Tensors tensors(config);
  config.mlp_bias = false;
  expect_refused(tensors, config, {"tensor 'model.layers.0.mlp.down_proj.bias': not part of the model"});
}

TEST(LoadWeights, SkipsRotaryFrequenciesOfOldFiles) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  const std::vector<float> frequencies(12, 1.0f);
  tensors.set("model.layers.0.self_attn.rotary_emb.inv_freq", {12}, frequencies.data(), DType::kF32);
  const TestFolder folder;
  EXPECT_TRUE(load_all(tensors.write(folder), config) == tensors.flat());
}

TEST(LoadWeights, NamesTheFieldsBehindAWrongShape) {
  const ModelConfig config = small_config();
  struct Case {
    const char* tensor;
    std::function<void(ModelConfig&)> change;
    std::vector<std::string> fragments;
  };
  const std::vector<Case> cases = {
      {"vocabulary",
       [](ModelConfig& c) { c.vocab_size = 5004; },
       {"tensor 'model.embed_tokens.weight': expected shape [5004, 72] = [vocab_size, hidden_size]",
        "found [5003, 72]"}},
      {"key-value heads",
       [](ModelConfig& c) { c.num_key_value_heads = 3; },
       {"tensor 'model.layers.0.self_attn.k_proj.weight'",
        "[72, 72] = [num_key_value_heads * head_dim, hidden_size]", "found [24, 72]"}},
      {"intermediate",
       [](ModelConfig& c) { c.intermediate_size = 104; },
       {"gate_proj.weight", "expected shape [104, 72] = [intermediate_size, hidden_size]",
        "found [100, 72]"}},
      {"hidden",
       [](ModelConfig& c) { c.hidden_size = 80; },
       {"tensor 'model.embed_tokens.weight': expected shape [5003, 80]"}},
      {"heads",
       [](ModelConfig& c) { c.num_attention_heads = 6; },
       {"q_proj.weight", "[144, 72] = [num_attention_heads * head_dim, hidden_size]", "found [72, 72]"}},
  };
  const Tensors tensors(config);
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.tensor);
    ModelConfig changed = config;
    wrong.change(changed);
    expect_refused(tensors, changed, wrong.fragments);
  }
}

TEST(LoadWeights, RefusesATransposedTensorOfTheSameSize) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  tensors.set(name, {100, 72}, tensors.at(name));
  expect_refused(tensors, config, {name, "expected shape [72, 100]", "found [100, 72]"});
}

TEST(LoadWeights, RefusesIntegersAsWeights) {
  const ModelConfig config = small_config();
  const Tensors tensors(config);
  const TestFolder folder;
  const fs::path path = tensors.write(folder);
  std::string bytes = read_text_file(path);
  const size_t entry = bytes.find("model.layers.1.mlp.up_proj.weight\":{\"dtype\":\"BF16\"");
  ASSERT_NE(entry, std::string::npos);
  bytes.replace(bytes.find("\"BF16\"", entry), 6, "\"I16\" ");
  write_text_file(path, bytes);
  expect_error(ExitCode::kBadData,
               {path.native(), "up_proj.weight': expected BF16, F16, F32 or F64, found I16"},
               [&] { load_all(path, config); });
}

TEST(LoadWeights, CountsWeightsThatAreNotFinite) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  tensors.at("model.norm.weight")[3] = std::numeric_limits<float>::infinity();
  expect_refused(tensors, config,
                 {"tensor 'model.norm.weight': expected finite weights, found 1 of 72 NaN or infinite"});
  tensors.at("model.embed_tokens.weight")[0] = std::nanf("");
  tensors.at("model.embed_tokens.weight")[5003 * 72 - 1] = -std::numeric_limits<float>::infinity();
  expect_refused(tensors, config,
                 {"tensor 'model.embed_tokens.weight'", "found 2 of 360,216", "(3 in 2 tensors in all)"});
}

// Into BF16 memory: 72 elements are two rounds of four vectors and a remainder.
TEST(LoadWeights, FindsASingleBadValueAtEveryPlaceWhenReadingInPlace) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  const ParameterLayout layout = parameter_layout(config);
  std::vector<bf16> flat(static_cast<size_t>(layout.num_elements()));
  ThreadPool pool(1);
  const WeightSink no_sink = [](int64_t, std::span<const float>) { FAIL() << "not in place"; };
  LoadOptions options;
  options.bf16_destination = [&](int64_t begin, int64_t count) {
    return std::span(flat).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  };
  const auto load = [&] {
    const TestFolder folder;
    load_weights(SafetensorsModel::open(tensors.write(folder)), config, layout, no_sink, pool, options);
  };
  const float largest = std::bit_cast<float>(0x7F7F0000u);
  std::fill_n(tensors.at("model.norm.weight"), 72, -largest);
  load();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t at : {0, 1, 7, 8, 31, 32, 40, 63, 64, 65, 71}) {
    SCOPED_TRACE(at);
    const float bad = at % 2 == 0 ? -infinity : std::bit_cast<float>(0x7F810000u);  // a signalling NaN
    const float before = std::exchange(tensors.at("model.norm.weight")[at], bad);
    expect_error(ExitCode::kBadData, {"'model.norm.weight': expected finite weights, found 1 of 72"}, load);
    tensors.at("model.norm.weight")[at] = before;
  }
}

TEST(TiedEmbeddings, AnLmHeadThatRepeatsThemIsAccepted) {
  ModelConfig config = small_config();
  config.tie_word_embeddings = true;
  Tensors tensors(config);
  std::vector<float> copy(tensors.at("model.embed_tokens.weight"),
                          tensors.at("model.embed_tokens.weight") + 5003 * 72);
  tensors.set("lm_head.weight", {5003, 72}, copy.data(), DType::kF32);
  const TestFolder folder;
  EXPECT_TRUE(load_all(tensors.write(folder), config) == tensors.flat());
  copy[300'000] += 1;
  expect_refused(
      tensors, config,
      {"tensor 'lm_head.weight': expected the values of model.embed_tokens.weight", "at element 300000"});
  tensors.set("lm_head.weight", {72, 5003}, copy.data());
  expect_refused(tensors, config, {"tensor 'lm_head.weight': expected shape [5003, 72]", "found [72, 5003]"});
}

TEST(TiedEmbeddings, AMissingLmHeadOfAnUntiedModelIsRefused) {
  const ModelConfig config = small_config();
  Tensors tensors(config);
  tensors.erase("lm_head.weight");
  expect_refused(tensors, config, {"tensor 'lm_head.weight'", "tie_word_embeddings is false", "found none"});
}

TEST(ExportModelFolder, CopiesTheTokenizerAndAGivenGenerationConfig) {
  const TestFolder tokenizer, folder;
  tokenizer.write("tokenizer.json", "{\"a\": 1}");
  tokenizer.write("tokenizer_config.json", "{}");
  tokenizer.write("generation_config.json", "{\"temperature\": 0.5}");
  tokenizer.write("optimizer.pt", "not a tokenizer's");
  const ModelConfig config = small_config();
  const std::vector<float> flat = bf16_weights(parameter_layout(config), kWeightSeed);
  export_flat(folder.path(), config, flat, {.tokenizer_folder = tokenizer.path()});
  EXPECT_EQ(folder.names(),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_text_file(folder / "tokenizer.json"), "{\"a\": 1}");
  EXPECT_TRUE(
      parse_json(read_text_file(folder / "generation_config.json"), "g").contains("_from_model_config"));
  // Into the tokenizer's own folder: nothing is copied, nothing is lost.
  export_flat(
      tokenizer.path(), config, flat,
      {.tokenizer_folder = tokenizer.path(), .generation_config = tokenizer / "generation_config.json"});
  EXPECT_EQ(read_text_file(tokenizer / "tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(read_text_file(tokenizer / "generation_config.json"), "{\"temperature\": 0.5}");
}

TEST(ExportModelFolder, AddsTheEndOfAnswersToTheGenerationConfig) {
  const TestFolder base, folder;
  const ModelConfig config = small_config();
  const std::vector<float> flat = bf16_weights(parameter_layout(config), kWeightSeed);
  const auto exported = [&](const std::string& generation_config) {
    base.write("generation_config.json", generation_config);
    export_flat(folder.path(), config, flat,
                {.generation_config = base / "generation_config.json", .end_of_answer = 7});
    return parse_json(read_text_file(folder / "generation_config.json"), "g").dump();
  };
  EXPECT_EQ(exported(R"({"top_k": 3})"), R"({"eos_token_id":[7],"top_k":3})");
  EXPECT_EQ(exported(R"({"eos_token_id": [5, 7]})"), R"({"eos_token_id":[5,7]})");
  // If _from_model_config is set, Transformers takes these tokens from config.json instead.
  EXPECT_EQ(exported(R"({"_from_model_config": true, "eos_token_id": 2})"), R"({"eos_token_id":[2,7]})");
}

TEST(ExportModelFolder, WritesAnotherTokenThatEndsTextsIntoEveryFile) {
  const TestFolder tokenizer, folder;
  tokenizer.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "model_max_length": 8})");
  const ModelConfig config = small_config();
  export_flat(folder.path(), config, bf16_weights(parameter_layout(config), kWeightSeed),
              {.tokenizer_folder = tokenizer.path(), .eos_token = EosToken{"<|im_end|>", 7}});
  const auto in = [&](const char* file) { return parse_json(read_text_file(folder / file), file); };
  EXPECT_EQ(in("config.json")["eos_token_id"], 7);
  EXPECT_EQ(in("tokenizer_config.json"), Json({{"eos_token", "<|im_end|>"}, {"model_max_length", 8}}));
  const Json ends = in("generation_config.json")["eos_token_id"];
  EXPECT_NE(std::find(ends.begin(), ends.end(), 7), ends.end()) << ends;
  // Otherwise Transformers uses the class's.
  fs::remove(tokenizer / "tokenizer_config.json");
  export_flat(folder.path(), config, bf16_weights(parameter_layout(config), kWeightSeed),
              {.tokenizer_folder = tokenizer.path(), .eos_token = EosToken{"<|im_end|>", 7}});
  EXPECT_EQ(in("tokenizer_config.json"), Json({{"eos_token", "<|im_end|>"}}));
}

TEST(ExportModelFolder, RefusesValuesThatTheSavedTypeCannotHold) {
  const ModelConfig config = small_config();
  const ParameterLayout layout = parameter_layout(config);
  std::vector<float> flat = bf16_weights(layout, kWeightSeed);
  const TestFolder folder;
  flat[static_cast<size_t>(layout.at("model.norm.weight").offset + 5)] = 70000;
  expect_error(ExitCode::kNumerics,
               {"tensor 'model.norm.weight': element 5", "save as F16, found 70000", "BF16 or F32"},
               [&] { export_flat(folder.path(), config, flat, {.save_dtype = DType::kF16}); });
  EXPECT_TRUE(fs::is_empty(folder.path()));
  export_flat(folder.path(), config, flat, {.save_dtype = DType::kBF16});
  flat[static_cast<size_t>(layout.at("lm_head.weight").offset + 7)] = std::nanf("");
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    flat[static_cast<size_t>(layout.at("model.norm.weight").offset + 5)] = 1;
    expect_error(ExitCode::kNumerics, {"tensor 'lm_head.weight': element 7", "found nan"},
                 [&] { export_flat(folder.path(), config, flat, {.save_dtype = dtype}); });
  }
}

TEST(ReferenceFolders, AreLoadedAndExportedUnchanged) {
  for (const fs::path& folder : reference_cases()) {
    const ModelConfig config = read_model_config(folder);
    const std::vector<float> flat = load_all(folder, config);
    EXPECT_GT(*std::max_element(flat.begin(), flat.end()), 0);
    const TestFolder out;
    for (const int64_t max_shard_bytes : {int64_t{5'000'000'000}, int64_t{100'000}}) {
      export_flat(out.path(), config, flat, {.max_shard_bytes = max_shard_bytes});
      EXPECT_EQ(load_all(out.path(), read_model_config(out.path())), flat)
          << folder << " " << max_shard_bytes;
    }
  }
}

}  // namespace
}  // namespace tessera
