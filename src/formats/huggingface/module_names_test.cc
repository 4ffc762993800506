#include "formats/huggingface/module_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "formats/huggingface/lora_config.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string module_of_layer(int layer, const char* name) {
  const bool is_attention =
      std::string_view("qkvo").find(name[0]) != std::string_view::npos && name[1] == '_';
  return fmt::format("model.layers.{}.{}.{}", layer, is_attention ? "self_attn" : "mlp", name);
}

// "rank/scale" and the modules of a model of 12 layers that have it: layer and first letter of the name.
std::map<std::string, std::set<std::string>> adapters_of(const std::string& settings) {
  const LoraConfig config =
      parse_lora_config(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, )" + settings + "}", "a");
  std::map<std::string, std::set<std::string>> adapters;
  for (int layer = 0; layer < 12; ++layer) {
    for (const std::string& name : lora_module_names()) {
      const auto adapter = config.adapter_of(module_of_layer(layer, name.c_str()));
      if (!adapter) continue;
      adapters[fmt::format("{}/{:.4g}", adapter->rank, adapter->scale)].insert(
          fmt::format("{}{}", layer, name[0]));
    }
  }
  return adapters;
}

std::set<std::string> of_layers(std::initializer_list<int> layers, const char* letters) {
  std::set<std::string> modules;
  for (const int layer : layers) {
    for (const char* letter = letters; *letter != 0; ++letter)
      modules.insert(fmt::format("{}{}", layer, *letter));
  }
  return modules;
}

// Computed by PEFT 0.21.2 with a Llama of 12 layers.
TEST(PeftModules, AreThoseOfPeft) {
  using Adapters = std::map<std::string, std::set<std::string>>;
  const auto all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(adapters_of(R"("target_modules": ".*\\.(1|3)\\.self_attn\\.[qv]_proj")"),
            (Adapters{{"8/2", of_layers({1, 3}, "qv")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ".*_proj", "exclude_modules": ".*mlp.*")"),
            (Adapters{{"8/2", of_layers(all, "qkvo")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj", "down_proj"],
                           "exclude_modules": ["layers.1.self_attn.q_proj", "down_proj"])"),
            (Adapters{{"8/2", of_layers({0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"], "layers_to_transform": [1, 10])"),
            (Adapters{{"8/2", of_layers({1, 10}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj", "model.layers.0.self_attn.q_proj"],
                           "layers_to_transform": 1)"),
            (Adapters{{"8/2", of_layers({0, 1}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"], "layers_to_transform": [1],
                           "layers_pattern": ["h", "layers"])"),
            (Adapters{{"8/2", of_layers({1}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "h")"),
            Adapters{});
  EXPECT_EQ(adapters_of(R"("target_modules": "q_proj")"), Adapters{});
  EXPECT_EQ(adapters_of(R"("target_modules": "ALL-linear")").at("8/2").size(), 84U);
}

TEST(PeftModules, TheFirstPatternInTheFileThatFitsCounts) {
  using Adapters = std::map<std::string, std::set<std::string>>;
  const auto all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"],
                           "alpha_pattern": {"q_proj": 4, "layers.1.self_attn.q_proj": 64})"),
            (Adapters{{"8/0.5", of_layers(all, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"],
                           "alpha_pattern": {"layers.1.self_attn.q_proj": 64, "q_proj": 4})"),
            (Adapters{{"8/0.5", of_layers({0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "q")},
                      {"8/8", of_layers({1}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj", "v_proj"],
                           "rank_pattern": {".*\\.[01]\\.self_attn\\.v_proj": 2, "v_proj": 3, "nope": 4,
                                            "layers\\.\\d\\.self_attn\\.q_proj": 5})"),
            (Adapters{{"5/3.2", of_layers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "q")},
                      {"2/8", of_layers({0, 1}, "v")},
                      {"3/5.333", of_layers({2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "v")},
                      {"8/2", of_layers({10, 11}, "q")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj", "v_proj"], "use_rslora": true,
                           "rank_pattern": {"q_proj|v_proj": 2})"),
            (Adapters{{"2/11.31", of_layers(all, "qv")}}));
  EXPECT_EQ(adapters_of(R"("target_modules": ["q_proj"],
                           "rank_pattern": {"^layers.1.self_attn.q_proj": 2, "^model.layers.2.self_attn.q_proj": 3})"),
            (Adapters{{"8/2", of_layers({0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "q")},
                      {"3/5.333", of_layers({2}, "q")}}));
}

TEST(PeftModules, ExpressionsThatPythonRefusesAreRefused) {
  for (const char* wrong : {"(", "*x", "[a", "\\q", "\\Kx", "(*FAIL)", "(?R)", "a(?1)", "x\\"}) {
    try {
      check_module_expression(wrong, "here");
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_THAT(error.what(), HasSubstr("here: "));
    }
  }
  EXPECT_TRUE(is_full_match("(?i)model\\..*Q_(?P<x>proj)(?<!k)\\Z", "model.layers.0.q_proj"));
}

TEST(PeftModules, AnExpressionOfExponentialCostIsNamed) {
  try {
    is_full_match("(([a-z._0-9]+)+)+[!?]", "model.layers.0.self_attn.q_proj");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), HasSubstr("takes too many steps"));
  }
}

}  // namespace
}  // namespace tessera
