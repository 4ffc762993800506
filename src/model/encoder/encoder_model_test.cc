#include "model/encoder/encoder_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "support/model_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

ModelConfig tiny_encoder(bool norm_first) {
  ModelConfig config;
  config.family = norm_first ? "modernbert" : "bert";
  config.vocab_size = 41;
  config.hidden_size = 24;
  config.intermediate_size = 20;
  config.num_hidden_layers = 3;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.head_dim = 8;
  config.max_position_embeddings = 200;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  config.activation = norm_first ? Activation::kGatedGelu : Activation::kGelu;
  config.qkv_bias = config.o_bias = config.mlp_bias = !norm_first;
  config.encoder = EncoderOnly{.norm_first = norm_first,
                               .norm_bias = !norm_first,
                               .type_vocab_size = norm_first ? 0 : 2,
                               .has_positions = !norm_first,
                               .local_rope_theta = norm_first ? 1000.0 : 0.0,
                               .transform_bias = !norm_first};
  if (norm_first) config.sliding_window = {0, 5, 5};
  return config;
}

PackedBatch random_masked(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  const CounterRng rng(seed, 3);
  uint64_t drawn = 0;
  const auto draw = [&](int64_t count) {
    return static_cast<int32_t>(rng.uniform(drawn++) * static_cast<double>(count));
  };
  for (const int64_t length : lengths) {
    for (int64_t position = 0; position < length; ++position) {
      batch.input_ids.push_back(draw(vocab_size));
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.targets.push_back(draw(3) == 0 ? draw(vocab_size) : kIgnoredLabel);
      if (batch.targets.back() != kIgnoredLabel) ++batch.num_targets;
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
  }
  return batch;
}

using EncoderTestModel = TestModelOf<EncoderModel>;

std::vector<float> encoder_weights(const ModelConfig& config) {
  return random_weights(EncoderModel::parameter_layout(config), 0.25f, 5);
}

class EncoderGradients : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(EncoderGradients, AgreeWithDifferences) {
  const auto [norm_first, checkpointing] = GetParam();
  const ModelConfig config = tiny_encoder(norm_first);
  const PackedBatch batch = random_masked({9, 1, 30}, config.vocab_size, 3);
  const std::vector<float> weights = encoder_weights(config);
  EncoderTestModel test(config, DType::kF32, weights);
  test.model().reserve(limits_of(batch, checkpointing));
  test.fill_gradients(7.0f);  // is overwritten
  double squares = 0;
  const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
  EXPECT_EQ(sums.num_targets, batch.num_targets);
  const std::vector<float> gradients = test.gradients();
  EXPECT_NEAR(squares, sum_of_squares(test.model().layout(), gradients), 1e-4 * squares);
  EXPECT_NEAR(test.model().forward_loss(batch).loss_sum, sums.loss_sum, 1e-5 * sums.loss_sum);
  expect_gradients_are_differences(test, weights, batch, std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(All, EncoderGradients, testing::Combine(testing::Bool(), testing::Bool()));

TEST(EncoderDropout, GradientsAgreeWithDifferences) {
  for (const bool norm_first : {false, true}) {
    ModelConfig config = tiny_encoder(norm_first);
    config.dropout = {0.1, 0.2, 0.15, norm_first ? 0.3 : 0, norm_first ? 0 : 0.25};
    const PackedBatch batch = random_masked({9, 1, 30}, config.vocab_size, 3);
    const std::vector<float> weights = encoder_weights(config);
    const std::vector<uint64_t> numbers = numbers_of_tokens(batch);
    std::vector<std::vector<float>> gradients;
    for (const bool checkpointing : {false, true}) {
      EncoderTestModel test(config, DType::kF32, weights, checkpointing ? 3 : 1);
      const ActivationLimits limits = limits_of(batch, checkpointing);
      test.model().reserve(limits);
      EXPECT_EQ(test.model().reserved_bytes().total(), test.model().activation_bytes(limits).total());
      test.model().draw_dropout({.seed = 4, .tokens = numbers});
      double squares = 0;
      const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
      gradients.push_back(test.gradients());
      EXPECT_NE(test.model().forward_loss(batch).loss_sum, sums.loss_sum) << "evaluation drops nothing";
      if (checkpointing) continue;
      expect_gradients_are_differences(test, weights, std::sqrt(squares), [&] {
        return test.model().forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum;
      });
    }
    EXPECT_TRUE(gradients[0] == gradients[1]) << norm_first;
  }
}

TEST(Encoder, CheckpointingPackedFormsThreadsAndOrderLeaveTheBits) {
  for (const bool norm_first : {false, true}) {
    const ModelConfig config = tiny_encoder(norm_first);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const PackedBatch first = random_masked({140, 3}, config.vocab_size, 1);
      const PackedBatch second = random_masked({2, 70}, config.vocab_size, 2);
      std::vector<std::vector<float>> gradients;
      for (const bool checkpointing : {false, true}) {
        EncoderTestModel test(config, dtype, encoder_weights(config), checkpointing ? 3 : 1);
        ActivationLimits limits = limits_of(first, checkpointing);
        limits.pack_weights = checkpointing;
        test.model().reserve(limits);
        EXPECT_EQ(test.model().reserved_bytes().total(), test.model().activation_bytes(limits).total());
        test.model().forward_backward(first, 1, 0, Update::kOverwrite);
        test.model().forward_backward(second, 1, 0, Update::kAdd);
        gradients.push_back(test.gradients());
      }
      EXPECT_TRUE(gradients[0] == gradients[1]) << dtype_name(dtype) << " " << norm_first;
    }
  }
}

TEST(Encoder, OutputsThatAreKeptLeaveTheBits) {
  for (const bool norm_first : {false, true}) {
    const ModelConfig config = tiny_encoder(norm_first);
    const PackedBatch batch = random_masked({9, 1, 30}, config.vocab_size, 3);
    std::vector<float> expected;
    int64_t smallest = 0;
    ActivationLimits limits = limits_of(batch, true);
    const int64_t count = 4 * config.num_hidden_layers - 3;
    for (limits.num_kept_outputs = 0; limits.num_kept_outputs <= count; ++limits.num_kept_outputs) {
      EncoderTestModel test(config, DType::kF32, encoder_weights(config));
      ASSERT_EQ(test.model().num_keepable_outputs(), count);
      test.model().reserve(limits);
      const int64_t bytes = test.model().reserved_bytes().total();
      EXPECT_EQ(bytes, test.model().activation_bytes(limits).total());
      EXPECT_GE(bytes, smallest) << "more outputs need more memory";
      smallest = bytes;
      test.model().forward_backward(batch, 1, 0, Update::kOverwrite);
      if (limits.num_kept_outputs == 0) expected = test.gradients();
      EXPECT_TRUE(test.gradients() == expected) << limits.num_kept_outputs << " outputs kept";
    }
  }
}

// Types have a table of their own, whose rows get the gradients of their tokens.
TEST(Encoder, TokenTypesHaveGradients) {
  const ModelConfig config = tiny_encoder(false);
  PackedBatch batch = random_masked({9, 4}, config.vocab_size, 3);
  const std::vector<float> weights = encoder_weights(config);
  EncoderTestModel test(config, DType::kF32, weights);
  test.model().reserve(limits_of(batch));
  const double plain = test.model().forward_loss(batch).loss_sum;
  for (size_t t = 0; t < batch.input_ids.size(); ++t)
    batch.token_types.push_back(batch.positions[t] < 4 ? 0 : 1);
  double squares = 0;
  const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
  EXPECT_NE(sums.loss_sum, plain);
  expect_gradients_are_differences(test, weights, batch, std::sqrt(squares));
  batch.token_types[2] = 2;
  EXPECT_THROW(test.model().forward_loss(batch), Error);
}

TEST(Encoder, ABatchWithoutTargetsHasNoGradient) {
  const ModelConfig config = tiny_encoder(true);
  PackedBatch batch = random_masked({9, 4}, config.vocab_size, 3);
  std::ranges::fill(batch.targets, kIgnoredLabel);
  batch.num_targets = 0;
  EncoderTestModel test(config, DType::kF32, encoder_weights(config));
  test.model().reserve(limits_of(batch));
  test.fill_gradients(7.0f);
  test.model().forward_backward(batch, 1, 0, Update::kOverwrite);
  for (const float gradient : test.gradients()) ASSERT_EQ(gradient, 0);
}

// Loss and gradient norm of the first step of Transformers' models for masked tokens.
TEST(Encoder, HasTheLossAndGradientNormOfTransformers) {
  int num_cases = 0;
  for (const char* name : {"bert-mlm", "modernbert-mlm"}) {
    const fs::path folder = shared_folder() / "reference/heads" / name;
    if (!fs::exists(folder)) continue;
    ++num_cases;
    SCOPED_TRACE(name);
    const ModelConfig config = read_model_config(folder);
    const SafetensorsFile expected = SafetensorsFile::open(folder / "expected.safetensors");
    PackedBatch batch;  // of the first step: two micro-batches of four rows
    batch.cu_seqlens = {0};
    std::ifstream rows(folder / "rows.jsonl");
    std::string line;
    for (int row = 0; row < 8 && std::getline(rows, line); ++row) {
      const Json fields = Json::parse(line);
      const auto ids = fields["input_ids"].get<std::vector<int32_t>>();
      const auto labels = fields["labels"].get<std::vector<int32_t>>();
      for (size_t t = 0; t < ids.size(); ++t) {
        batch.input_ids.push_back(ids[t]);
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.targets.push_back(labels[t]);
        if (labels[t] != kIgnoredLabel) ++batch.num_targets;
      }
      batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
    }
    EncoderTestModel test(config, DType::kF32, read_weights(folder, parameter_layout(config)));
    test.model().reserve(limits_of(batch));
    double squares = 0;
    const LossSums sums = test.model().forward_backward(batch, 1.0f / static_cast<float>(batch.num_targets),
                                                        0, {Update::kOverwrite, &squares});
    const auto first = [&](const char* of) {
      float value = 0;
      expected.read(*expected.find(of), 0, TensorView(&value, DType::kF32, {1}));
      return value;
    };
    EXPECT_NEAR(sums.loss_sum / static_cast<double>(batch.num_targets), first("loss"), 1e-5);
    EXPECT_NEAR(std::sqrt(squares), first("grad_norm"), 2e-4);
  }
  if (num_cases == 0) GTEST_SKIP() << "no reference runs of encoders under " << shared_folder();
}

}  // namespace
}  // namespace tessera
