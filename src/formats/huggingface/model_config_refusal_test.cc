// Every config.json that is refused, and why.
#include <gtest/gtest.h>

#include <vector>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "support/model_config_test_util.h"
#include "test_folder.h"

namespace tessera {
namespace {

struct BadConfig {
  const char* name;
  Json config;
  std::vector<std::string> fragments;
  ExitCode code = ExitCode::kBadData;

  friend void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }
};

class BadConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedInOneLineThatNamesTheField) {
  const TestFolder folder;
  const auto path = folder.write("config.json", GetParam().config.dump());
  std::vector<std::string> fragments = GetParam().fragments;
  fragments.push_back(path.native());
  expect_error(GetParam().code, fragments, [&] { read_model_config(folder.path()); });
}

BadConfig wrong(const char* name, const Json& changes, std::vector<std::string> fragments) {
  return {name, base_config("llama", changes), std::move(fragments), ExitCode::kBadData};
}

BadConfig unsupported(const char* name, const Json& changes, std::vector<std::string> fragments) {
  return {name, base_config("llama", changes), std::move(fragments), ExitCode::kBadConfig};
}

Json rope(const Json& changes) {
  Json scaling = kLlama3Rope;
  for (const auto& [name, value] : changes.items()) {
    if (value.is_null()) {
      scaling.erase(name);
    } else {
      scaling[name] = value;
    }
  }
  return {{"rope_scaling", scaling}};
}

INSTANTIATE_TEST_SUITE_P(
    Wrong, BadConfigTest,
    testing::Values(
        BadConfig{"NotAnObject", Json::array(), {"expected an object, found an empty list"}},
        wrong("NoFamily", {{"model_type", nullptr}}, {"field 'model_type': expected the model's family"}),
        wrong("NoHiddenSize", {{"hidden_size", nullptr}},
              {"field 'hidden_size': expected an integer", "found nothing"}),
        wrong("NoVocabulary", {{"vocab_size", nullptr}}, {"field 'vocab_size'"}),
        wrong("NoLayers", {{"num_hidden_layers", nullptr}}, {"field 'num_hidden_layers'"}),
        wrong("NoIntermediateSize", {{"intermediate_size", nullptr}}, {"field 'intermediate_size'"}),
        wrong("NoHeads", {{"num_attention_heads", nullptr}}, {"field 'num_attention_heads'"}),
        wrong("ZeroHiddenSize", {{"hidden_size", 0}},
              {"'hidden_size': expected an integer from 1 to", "found 0"}),
        wrong("NegativeLayers", {{"num_hidden_layers", -3}}, {"'num_hidden_layers'", "found -3"}),
        wrong("HugeLayers", {{"num_hidden_layers", 1'000'000'000}},
              {"'num_hidden_layers'", "found 1000000000"}),
        wrong("HugeVocabulary", {{"vocab_size", 1LL << 40}}, {"'vocab_size'", "found 1099511627776"}),
        wrong("HugeTogether",
              {{"hidden_size", 1 << 20}, {"num_hidden_layers", 10'000}, {"intermediate_size", 1 << 22}},
              {"describes a model of 1.", "e+17 parameters, expected at most 1e+15"}),
        wrong("FractionalSize", {{"hidden_size", 256.5}},
              {"'hidden_size': expected an integer from 1 to 1048576, found 256.5"}),
        wrong("SizeAsText", {{"hidden_size", "256"}},
              {"'hidden_size': expected an integer from 1", "found \"256\""}),
        wrong("HeadsDoNotDivide", {{"hidden_size", 250}},
              {"'hidden_size': expected a multiple of num_attention_heads = 8", "250"}),
        wrong("KeyValueHeadsDoNotDivide", {{"num_key_value_heads", 3}},
              {"'num_attention_heads': expected a multiple of num_key_value_heads = 3, found 8"}),
        wrong("MoreKeyValueHeads", {{"num_key_value_heads", 16}},
              {"multiple of num_key_value_heads = 16, found 8"}),
        wrong("OddHeadDim", {{"head_dim", 33}}, {"'head_dim': expected an even number", "found 33"}),
        wrong("ZeroEps", {{"rms_norm_eps", 0}}, {"'rms_norm_eps': expected a number above 0", "found 0"}),
        wrong("NegativeTheta", {{"rope_theta", -1}}, {"'rope_theta': expected a number above 0", "found -1"}),
        wrong("NegativeRange", {{"initializer_range", -0.02}}, {"'initializer_range'", "found -0.02"}),
        wrong("TieAsNumber", {{"tie_word_embeddings", 1}},
              {"'tie_word_embeddings': expected true or false, found 1"}),
        wrong("EosOfText", {{"eos_token_id", {"</s>"}}}, {"'eos_token_id[0]': expected an integer"}),
        wrong("PadOutside", {{"pad_token_id", 1000}}, {"'pad_token_id'", "found 1000"}),
        wrong("RopeIsText", {{"rope_scaling", "llama3"}},
              {"'rope_scaling': expected an object, found \"llama3\""}),
        wrong("RopeWithoutFactor", rope({{"factor", nullptr}}),
              {"'rope_scaling.factor': expected a number from 1e-9", "nothing"}),
        wrong("RopeWithoutLow", rope({{"low_freq_factor", nullptr}}), {"'rope_scaling.low_freq_factor'"}),
        wrong("RopeHighBelowLow", rope({{"high_freq_factor", 0.5}}),
              {"'rope_scaling.high_freq_factor': expected more than low_freq_factor = 1, found 0.5"}),
        wrong("RopeTwice", {{"rope_scaling", kLlama3Rope}, {"rope_parameters", {{"rope_theta", 1e4}}}},
              {"'rope_scaling' and 'rope_parameters' contradict"}),
        wrong("ZeroWindow", {{"sliding_window", 0}},
              {"'sliding_window': expected an integer from 1", "found 0"}),
        BadConfig{"LayerTypesTooShort",
                  base_config("qwen2", {{"layer_types", {"full_attention"}}}),
                  {"'layer_types': expected a list of num_hidden_layers = 4 names"}},
        BadConfig{"LayerTypesWithoutWindow",
                  base_config("qwen2", {{"layer_types",
                                         {"full_attention", "full_attention", "full_attention",
                                          "sliding_attention"}}}),
                  {"'layer_types': layer 3 is sliding_attention but sliding_window is not in use"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Unsupported, BadConfigTest,
    testing::Values(
        unsupported("Family", {{"model_type", "falcon"}},
                    {"'model_type': 'falcon' is not supported", "expected one of bert, "}),
        unsupported("MoeFamily", {{"model_type", "deepseek_v3"}}, {"'deepseek_v3' is not supported"}),
        unsupported("RopeField", rope({{"mrope_section", {1, 1}}}),
                    {"'rope_scaling.mrope_section' is not supported"}),
        BadConfig{"ArchitectureAlone",
                  base_config("llama", {{"model_type", nullptr}, {"architectures", {"LlamaModel"}}}),
                  {"'architectures': 'LlamaModel' is not supported, expected BertForMaskedLM"},
                  ExitCode::kBadConfig},
        unsupported("ArchitectureOfOtherFamily", {{"architectures", {"Qwen2ForCausalLM"}}},
                    {"'Qwen2ForCausalLM' is not supported with model_type 'llama'"}),
        unsupported("Activation", {{"hidden_act", "gelu"}},
                    {"'hidden_act': 'gelu' is not supported, expected 'silu'"}),
        unsupported("Quantized", {{"quantization_config", {{"bits", 4}}}},
                    {"'quantization_config': {\"bits\":4} is not supported"}),
        unsupported("HiddenDropout", {{"hidden_dropout", 0.1}},
                    {"'hidden_dropout': 0.1 is not supported, expected 0"}),
        unsupported("PartialRotary", {{"partial_rotary_factor", 0.5}},
                    {"'partial_rotary_factor': 0.5 is not supported"}),
        unsupported("PartialRotaryInRope", rope({{"partial_rotary_factor", 0.5}}),
                    {"'rope_scaling.partial_rotary_factor'"}),
        unsupported("Experts", {{"num_local_experts", 8}}, {"'num_local_experts': 8 is not supported"}),
        unsupported(
            "Dynamic", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
            {"'rope_scaling.type': 'dynamic' is not supported: its frequencies depend on the longest row"}),
        unsupported("OtherRope", rope({{"rope_type", "proportional"}}),
                    {"'rope_scaling.rope_type': 'proportional' is not supported, expected default, linear"}),
        unsupported("RopePerLayerType", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}},
                    {"'rope_parameters.full_attention' is not supported"}),
        unsupported("TypoInField", {{"num_key_value_heads", nullptr}, {"num_key_value_head", 2}},
                    {"unknown field 'num_key_value_head': did you mean 'num_key_value_heads'?"}),
        BadConfig{"ChunkedAttention",
                  base_config("qwen3", {{"layer_types", std::vector<std::string>(4, "chunked_attention")}}),
                  {"'layer_types': \"chunked_attention\" is not supported"},
                  ExitCode::kBadConfig}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(ReadModelConfig, NamesAPathThatDoesNotExist) {
  for (const char* path : {"/a/b", "./a", "../a", "a/b/c", "no_such_model", "a b/c", "nowhere/", "a/"}) {
    expect_error(ExitCode::kNoInput, {path, "No such file"}, [&] { read_model_config(path); });
  }
}

TEST(ReadModelConfig, NamesWhatIsMissingOrMalformed) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput,
               {folder.path().native(), "expected config.json in a Hugging Face model folder, found none"},
               [&] { read_model_config(folder.path()); });
  const auto path = folder.write("config.json", "{\"model_type\": \"llama\", \"model_type\": \"llama\"}");
  expect_error(ExitCode::kBadData, {path.native(), "key 'model_type' appears twice"},
               [&] { read_model_config(path); });
  folder.write("config.json", "{" + std::string(2'000'000, ' '));
  expect_error(ExitCode::kBadData, {path.native(), "file too large"}, [&] { read_model_config(path); });
}

}  // namespace
}  // namespace tessera
