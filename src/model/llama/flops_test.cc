#include "model/flops.h"

#include <gtest/gtest.h>

#include "support/model_test_support.h"

namespace tessera {
namespace {

double counted_pairs(int64_t length, int64_t window) {
  double pairs = 0;
  for (int64_t query = 0; query < length; ++query) {
    for (int64_t key = 0; key <= query; ++key) pairs += window == 0 || query - key < window;
  }
  return pairs;
}

TEST(Flops, PairsAreThoseOfACausalMask) {
  for (const int64_t length : {0, 1, 2, 7, 100}) {
    for (const int64_t window : {0, 1, 3, 99, 100, 101}) {
      EXPECT_EQ(causal_pairs(length, window), counted_pairs(length, window))
          << "length " << length << ", window " << window;
    }
  }
}

// Every matrix in the layout except the embedding, 6 operations per element and token; of the experts those
// that a token takes.
TEST(Flops, AreSixPerMatrixParameterAndToken) {
  for (const NamedConfig& named : all_option_configs()) {
    const ModelConfig& config = named.config;
    double elements = 0;
    const ParameterLayout layout = parameter_layout(config);
    for (const Parameter& parameter : layout.parameters()) {
      const bool is_head = parameter.name == "lm_head.weight";
      const bool is_embedding = parameter.name == "model.embed_tokens.weight";
      const bool is_bias = parameter.kind == ParameterKind::kBias;  // of all experts of a layer, too
      if (parameter.shape.size() == 2 && !is_head && !is_embedding && !is_bias) {
        const bool is_expert = parameter.name.find(".experts.") != std::string::npos;
        elements += static_cast<double>(parameter.num_elements) *
                    (is_expert ? static_cast<double>(config.experts->num_experts_per_tok) /
                                     static_cast<double>(config.experts->num_experts)
                               : 1);
      }
    }
    const std::vector<int32_t> one_row = {0, 10};
    const ModelFlops flops = model_flops(config, one_row, 9);
    EXPECT_DOUBLE_EQ(3 * flops.layers, 6 * 10 * elements) << named.name;
    EXPECT_EQ(3 * flops.lm_head, 6.0 * 9 * static_cast<double>(config.vocab_size * config.hidden_size))
        << named.name;
    EXPECT_EQ(flops.forward_backward(), 3 * (flops.layers + flops.attention + flops.lm_head)) << named.name;
  }
}

TEST(Flops, AttentionFollowsRowsAndWindows) {
  ModelConfig config = tiny_config();
  const auto width = static_cast<double>(config.num_attention_heads * config.head_dim);
  const std::vector<int32_t> rows = {0, 5, 5, 12};
  EXPECT_EQ(model_flops(config, rows, 0).attention, 4 * width * 2 * (15 + 28));
  config.sliding_window = {3, 0};
  EXPECT_EQ(model_flops(config, rows, 0).attention,
            4 * width * (counted_pairs(5, 3) + counted_pairs(7, 3) + 15 + 28));
  EXPECT_EQ(model_flops(config, rows, 0).lm_head, 0);
}

// Llama 3 8B with 8192 tokens: 6 times 7,504,658,432 matrix elements, and 12 x 32 layers x 4096 x 8193/2.
TEST(Flops, OfLlama3With8BillionParameters) {
  ModelConfig config = preset_config("llama3-8b");
  config.vocab_size = 128256;
  const std::vector<int32_t> rows = {0, 8192};
  const double per_token = model_flops(config, rows, 8192).forward_backward() / 8192;
  EXPECT_EQ(per_token, 6.0 * 7'504'658'432 + 12.0 * 32 * 4096 * 8193 / 2);
}

// Qwen3-30B-A3B: 30.5 billion parameters, of which a token multiplies 2.7 billion in the layers.
TEST(Flops, OfAMixtureCountTheExpertsOfAToken) {
  const ModelConfig config = preset_config("qwen3-30b-a3b");
  const std::vector<int32_t> rows = {0, 1};
  const double attention = 2.0 * 2048 * (32 + 4) * 128, router = 128.0 * 2048, experts = 8 * 3 * 2048.0 * 768;
  EXPECT_DOUBLE_EQ(model_flops(config, rows, 0).layers, 2 * 48 * (attention + router + experts));
  EXPECT_EQ(parameter_layout(config).num_parameters(), 30'532'122'624);
}

}  // namespace
}  // namespace tessera
