#include "model/encoder_decoder/encoder_decoder_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <ostream>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "formats/safetensors/safetensors.h"
#include "model/encoder_decoder/encoder_decoder_generator.h"
#include "model/encoder_decoder/position_buckets.h"
#include "ops/cpu_ops.h"
#include "support/model_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

ModelConfig tiny_t5(Activation activation = Activation::kGatedGeluTanh, bool tied = false) {
  ModelConfig config;
  config.family = "t5";
  config.vocab_size = 37;
  config.hidden_size = 20;
  config.intermediate_size = 28;
  config.num_hidden_layers = 5;
  config.num_attention_heads = config.num_key_value_heads = 3;
  config.head_dim = 7;
  config.max_position_embeddings = 1000;
  config.tie_word_embeddings = tied;
  config.activation = activation;
  config.pad_token_id = 0;
  config.eos_token_ids = {1};
  config.encoder_decoder = EncoderDecoder{.num_encoder_layers = 2,
                                          .relative_attention_num_buckets = 8,
                                          .relative_attention_max_distance = 12,
                                          .scale_decoder_outputs = tied};
  return config;
}

// Pairs of these lengths of random tokens; about one target in five is ignored.
PackedBatch random_pairs(const std::vector<std::pair<int64_t, int64_t>>& lengths, int64_t vocab_size,
                         uint64_t seed) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  batch.num_sources = std::ssize(lengths);
  const CounterRng rng(seed, 7);
  uint64_t drawn = 0;
  const auto draw = [&](int64_t count) {
    return static_cast<int32_t>(rng.uniform(drawn++) * static_cast<double>(count));
  };
  const auto append = [&](int64_t length, bool is_target) {
    for (int64_t position = 0; position < length; ++position) {
      batch.input_ids.push_back(draw(vocab_size));
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.targets.push_back(is_target && draw(5) != 0 ? draw(vocab_size) : kIgnoredLabel);
      if (batch.targets.back() != kIgnoredLabel) ++batch.num_targets;
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
  };
  for (const auto& [source, target] : lengths) append(source, false);
  for (const auto& [source, target] : lengths) append(target, true);
  return batch;
}

using T5TestModel = TestModelOf<EncoderDecoderModel>;

std::vector<float> weights_of(const ModelConfig& config, float scale = 0.12f) {
  return random_weights(EncoderDecoderModel::parameter_layout(config), scale, 5);
}

TEST(PositionBuckets, AreThoseOfTransformers) {
  const auto at = [](const std::vector<int32_t>& buckets, int64_t distance) {
    const int64_t zero = std::ssize(buckets) / 2;
    return buckets[static_cast<size_t>(std::clamp<int64_t>(distance + zero, 0, std::ssize(buckets) - 1))];
  };
  const std::vector<int32_t> both = position_buckets(32, 128, true), past = position_buckets(32, 128, false);
  ASSERT_EQ(std::ssize(both), 257);
  for (int64_t distance = 0; distance < 8; ++distance) {
    EXPECT_EQ(at(both, -distance), distance);
    EXPECT_EQ(at(both, distance), distance == 0 ? 0 : 16 + distance);
    EXPECT_EQ(at(past, distance), 0);
    EXPECT_EQ(at(past, -distance), distance);
  }
  // T5Attention._relative_position_bucket of Transformers 5.24; all sizes from 4 to 128 buckets were
  // compared.
  const int64_t distances[] = {8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128};
  const int32_t of_both[] = {8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15};
  const int32_t of_past[] = {8, 11, 12, 15, 16, 18, 18, 21, 21, 23, 24, 26, 26, 29, 29, 31, 31};
  for (size_t i = 0; i < std::size(distances); ++i) {
    EXPECT_EQ(at(both, -distances[i]), of_both[i]) << distances[i];
    EXPECT_EQ(at(both, distances[i]), 16 + of_both[i]) << distances[i];
    EXPECT_EQ(at(past, -distances[i]), of_past[i]) << distances[i];
  }
  EXPECT_EQ(at(both, -200), 15);
  EXPECT_EQ(at(both, 200), 31);
  EXPECT_EQ(at(past, -200), 31);
  EXPECT_EQ(at(past, 200), 0);
}

struct NamedActivation {
  const char* name;
  Activation activation;

  friend void PrintTo(const NamedActivation& named, std::ostream* out) { *out << named.name; }
};

class T5Gradients : public testing::TestWithParam<std::tuple<NamedActivation, bool, bool>> {};

TEST_P(T5Gradients, AgreeWithDifferences) {
  const auto [named, tied, checkpointing] = GetParam();
  const ModelConfig config = tiny_t5(named.activation, tied);
  const PackedBatch batch = random_pairs({{9, 4}, {1, 1}, {30, 17}}, config.vocab_size, 3);
  std::vector<float> weights = weights_of(config);
  T5TestModel test(config, DType::kF32, weights);
  test.model().reserve(limits_of(batch, checkpointing));
  double squares = 0;
  const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
  EXPECT_EQ(sums.num_targets, batch.num_targets);
  const std::vector<float> gradients = test.gradients();
  EXPECT_NEAR(squares, sum_of_squares(test.model().layout(), gradients), 1e-4 * squares);
  EXPECT_NEAR(test.model().forward_loss(batch).loss_sum, sums.loss_sum, 1e-5 * sums.loss_sum);
  expect_gradients_are_differences(test, weights, batch, std::sqrt(squares));
}

INSTANTIATE_TEST_SUITE_P(
    All, T5Gradients,
    testing::Combine(testing::Values(NamedActivation{"relu", Activation::kRelu},
                                     NamedActivation{"gated_gelu", Activation::kGatedGeluTanh},
                                     NamedActivation{"gated_silu", Activation::kGatedSilu}),
                     testing::Bool(), testing::Bool()));

ModelConfig with_dropout(ModelConfig config) {
  config.dropout = {0.1, 0.2, 0.15, 0.3, 0.25, 0.2};
  return config;
}

TEST(T5Dropout, GradientsAgreeWithDifferences) {
  for (const bool checkpointing : {false, true}) {
    const ModelConfig config = with_dropout(tiny_t5(Activation::kGatedGeluTanh, checkpointing));
    const PackedBatch batch = random_pairs({{9, 4}, {1, 1}, {30, 17}}, config.vocab_size, 3);
    const std::vector<float> weights = weights_of(config);
    T5TestModel test(config, DType::kF32, weights);
    test.model().reserve(limits_of(batch, checkpointing));
    const std::vector<uint64_t> numbers = numbers_of_tokens(batch);
    test.model().draw_dropout({.seed = 4, .tokens = numbers});
    double squares = 0;
    const LossSums sums = test.model().forward_backward(batch, 1, 0, {Update::kOverwrite, &squares});
    EXPECT_NE(test.model().forward_loss(batch).loss_sum, sums.loss_sum) << "evaluation drops nothing";
    expect_gradients_are_differences(test, weights, std::sqrt(squares), [&] {
      return test.model().forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum;
    });
  }
}

// Each place drops elements of its own, which follow from the seed.
TEST(T5Dropout, EveryPlaceAndTheSeedMatter) {
  const PackedBatch batch = random_pairs({{9, 4}, {12, 17}}, 37, 3);
  const std::vector<uint64_t> numbers = numbers_of_tokens(batch);
  const auto loss = [&](const DropoutRates& rates, uint64_t seed) {
    ModelConfig config = tiny_t5();
    config.dropout = rates;
    T5TestModel test(config, DType::kF32, weights_of(config));
    test.model().reserve(limits_of(batch));
    test.model().draw_dropout({.seed = seed, .tokens = numbers});
    return test.model().forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum;
  };
  std::vector<double> losses = {loss({}, 1), loss({0.2, 0.2, 0.2, 0.2, 0.2, 0.2}, 1),
                                loss({0.2, 0.2, 0.2, 0.2, 0.2, 0.2}, 2)};
  for (double DropoutRates::*place :
       {&DropoutRates::embedding, &DropoutRates::attention, &DropoutRates::attention_output,
        &DropoutRates::mlp_hidden, &DropoutRates::mlp_output, &DropoutRates::stack_output}) {
    DropoutRates rates;
    rates.*place = 0.2;
    losses.push_back(loss(rates, 1));
  }
  std::ranges::sort(losses);
  EXPECT_EQ(std::ranges::adjacent_find(losses), losses.end());
}

TEST(T5Dropout, CheckpointingThreadsAndOtherRowsLeaveTheBits) {
  const ModelConfig config = with_dropout(tiny_t5());
  const PackedBatch both = random_pairs({{90, 33}, {7, 140}}, config.vocab_size, 1);
  const std::vector<uint64_t> numbers = numbers_of_tokens(both);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::vector<float>> gradients;
    for (const bool checkpointing : {false, true}) {
      T5TestModel test(config, dtype, weights_of(config), checkpointing ? 3 : 1);
      test.model().reserve(limits_of(both, checkpointing));
      test.model().draw_dropout({.seed = 4, .tokens = numbers});
      test.model().forward_backward(both, 1, 0, Update::kOverwrite);
      gradients.push_back(test.gradients());
    }
    EXPECT_TRUE(gradients[0] == gradients[1]) << dtype_name(dtype);
  }
  // The rows alone lose as much as together.
  const auto loss_of = [&](const PackedBatch& batch) {
    T5TestModel test(config, DType::kF32, weights_of(config));
    test.model().reserve(limits_of(batch));
    const std::vector<uint64_t> its_numbers = numbers_of_tokens(batch);
    test.model().draw_dropout({.seed = 4, .tokens = its_numbers});
    return test.model().forward_backward(batch, 1, 0, Update::kOverwrite).loss_sum;
  };
  double sum = 0;
  for (const size_t first : {0, 1}) {
    PackedBatch row;
    row.num_sources = 1;
    row.cu_seqlens = {0};
    for (const size_t sequence : {first, first + 2}) {
      for (auto t = static_cast<size_t>(both.cu_seqlens[sequence]);
           t < static_cast<size_t>(both.cu_seqlens[sequence + 1]); ++t) {
        row.input_ids.push_back(both.input_ids[t]);
        row.positions.push_back(both.positions[t]);
        row.targets.push_back(both.targets[t]);
        if (row.targets.back() != kIgnoredLabel) ++row.num_targets;
      }
      row.cu_seqlens.push_back(static_cast<int32_t>(row.input_ids.size()));
    }
    sum += loss_of(row);
  }
  EXPECT_NEAR(sum, loss_of(both), 1e-4 * sum);
}

TEST(T5, CheckpointingAndPackedFormsLeaveTheBits) {
  const ModelConfig config = tiny_t5();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PackedBatch first = random_pairs({{5, 3}, {40, 2}}, config.vocab_size, 1);
    const PackedBatch second = random_pairs({{2, 30}, {13, 1}}, config.vocab_size, 2);
    std::vector<std::vector<float>> gradients;
    for (const bool checkpointing : {false, true}) {
      T5TestModel test(config, dtype, weights_of(config));
      ActivationLimits limits = limits_of(first, checkpointing);
      limits.pack_weights = checkpointing;
      test.model().reserve(limits);
      test.model().forward_backward(first, 1, 0, Update::kOverwrite);
      test.model().forward_backward(second, 1, 0, Update::kAdd);
      gradients.push_back(test.gradients());
    }
    EXPECT_TRUE(gradients[0] == gradients[1]) << dtype_name(dtype);
  }
}

TEST(T5, DoesNotDependOnTheNumberOfThreadsNorOnOtherRows) {
  const ModelConfig config = tiny_t5();
  const PackedBatch both = random_pairs({{90, 33}, {7, 140}}, config.vocab_size, 1);
  std::vector<std::vector<float>> gradients;
  for (const int64_t threads : {1, 3}) {
    T5TestModel test(config, DType::kBF16, weights_of(config), threads);
    test.model().reserve(limits_of(both));
    std::vector<LossSums> by_row(2);
    const LossSums whole = test.model().forward_loss(both, 0, by_row);
    EXPECT_NEAR(by_row[0].loss_sum + by_row[1].loss_sum, whole.loss_sum, 1e-3);
    test.model().forward_backward(both, 1, 0, Update::kOverwrite);
    gradients.push_back(test.gradients());
  }
  EXPECT_TRUE(gradients[0] == gradients[1]);
}

TEST(T5, OutputsThatAreKeptLeaveTheBits) {
  const ModelConfig config = with_dropout(tiny_t5());
  const PackedBatch batch = random_pairs({{9, 4}, {30, 17}}, config.vocab_size, 3);
  const std::vector<uint64_t> numbers = numbers_of_tokens(batch);
  std::vector<float> expected;
  int64_t smallest = 0;
  ActivationLimits limits = limits_of(batch, true);
  const int64_t count = 4 * config.num_hidden_layers - 6;
  for (limits.num_kept_outputs = 0; limits.num_kept_outputs <= count; ++limits.num_kept_outputs) {
    T5TestModel test(config, DType::kF32, weights_of(config));
    ASSERT_EQ(test.model().num_keepable_outputs(), count);
    test.model().reserve(limits);
    const int64_t bytes = test.model().reserved_bytes().total();
    EXPECT_EQ(bytes, test.model().activation_bytes(limits).total());
    EXPECT_GE(bytes, smallest) << "more outputs need more memory";
    smallest = bytes;
    test.model().draw_dropout({.seed = 4, .tokens = numbers});
    test.model().forward_backward(batch, 1, 0, Update::kOverwrite);
    if (limits.num_kept_outputs == 0) expected = test.gradients();
    EXPECT_TRUE(test.gradients() == expected) << limits.num_kept_outputs << " outputs kept";
  }
}

// The buffers of any split of the tokens into sources and targets fit those reserved.
TEST(T5, AnyMixtureOfSourcesAndTargetsFits) {
  const ModelConfig config = tiny_t5();
  const int64_t num_tokens = 97;
  for (const bool checkpointing : {false, true}) {
    T5TestModel test(config, DType::kBF16, weights_of(config));
    ActivationLimits limits = {num_tokens, num_tokens};
    limits.gradient_checkpointing = checkpointing;
    if (checkpointing) limits.num_kept_outputs = 6;
    test.model().reserve(limits);
    EXPECT_EQ(test.model().reserved_bytes().total(), test.model().activation_bytes(limits).total());
    for (int64_t sources = 1; sources < num_tokens; ++sources) {
      const PackedBatch batch = random_pairs({{sources, num_tokens - sources}}, config.vocab_size, 4);
      EXPECT_TRUE(std::isfinite(test.model().forward_backward(batch, 1).loss_sum));
    }
  }
}

// Fed token by token, the logits are those of the whole target.
TEST(EncoderDecoderGenerator, HasTheLogitsOfTheWholeTarget) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Activation activation : {Activation::kRelu, Activation::kGatedGeluTanh}) {
      const ModelConfig config = tiny_t5(activation, activation == Activation::kRelu);
      PackedBatch batch = random_pairs({{19, 12}}, config.vocab_size, 9);
      batch.input_ids[19] = config.encoder_decoder->decoder_start_token_id;
      T5TestModel test(config, dtype, weights_of(config));
      test.model().reserve(limits_of(batch));
      const std::vector<float> whole = test.logits(batch);
      EncoderDecoderGenerator generator(test.model(), 24);
      for (int again = 0; again < 2; ++again) {
        generator.reset();
        std::span<const float> logits = generator.feed(std::span(batch.input_ids).first(19));
        for (size_t t = 0; t < 12; ++t) {
          if (t > 0) logits = generator.feed(std::span(batch.input_ids).subspan(19 + t, 1));
          for (size_t v = 0; v < logits.size(); ++v) {
            ASSERT_NEAR(logits[v], whole[t * logits.size() + v], dtype == DType::kF32 ? 1e-5 : 0.05)
                << dtype_name(dtype) << " token " << t;
          }
        }
        EXPECT_EQ(generator.length(), 12);
      }
      const std::vector<int32_t> many(25, 3);
      generator.reset();
      EXPECT_THROW(generator.feed(many), Error);
    }
  }
}

// Reference runs of Transformers' T5ForConditionalGeneration: logits of the first micro-batch, loss and norm
// of the first step.
struct T5Reference {
  explicit T5Reference(const fs::path& folder)
      : config(read_model_config(folder)),
        expected(SafetensorsFile::open(folder / "expected.safetensors")),
        batches(SafetensorsFile::open(folder / "batches.safetensors")),
        weights(read_weights(folder, parameter_layout(config))) {}
  std::vector<float> values(const char* name, int64_t count) const {
    std::vector<float> result(static_cast<size_t>(count));
    expected.read(*expected.find(name), 0, TensorView(result.data(), DType::kF32, {count}));
    return result;
  }
  std::vector<int32_t> row(const char* name, int64_t index) const {
    const int64_t length = batches.find(name)->shape[3];
    std::vector<int32_t> ids(static_cast<size_t>(length));
    batches.read(*batches.find(name), index * length, TensorView(ids.data(), DType::kI32, {length}));
    return ids;
  }
  // Micro-batch `micro` of the first step, with the padding that the case has.
  PackedBatch batch(int64_t micro) const {
    const int64_t rows = batches.find("input_ids")->shape[2];
    PackedBatch batch;
    batch.cu_seqlens = {0};
    batch.num_sources = rows;
    const auto end_sequence = [&] {
      batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
    };
    for (int64_t i = 0; i < rows; ++i) {
      const std::vector<int32_t> ids = row("input_ids", micro * rows + i);
      for (size_t t = 0; t < ids.size(); ++t) {
        batch.input_ids.push_back(ids[t]);
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.targets.push_back(kIgnoredLabel);
      }
      end_sequence();
    }
    for (int64_t i = 0; i < rows; ++i) {
      const std::vector<int32_t> labels = row("labels", micro * rows + i);
      for (size_t t = 0; t < labels.size(); ++t) {
        const int32_t before = t == 0 ? config.encoder_decoder->decoder_start_token_id : labels[t - 1];
        batch.input_ids.push_back(before == kIgnoredLabel ? 0 : before);
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.targets.push_back(labels[t]);
        if (labels[t] != kIgnoredLabel) ++batch.num_targets;
      }
      end_sequence();
    }
    return batch;
  }

  ModelConfig config;
  SafetensorsFile expected, batches;
  std::vector<float> weights;
};

TEST(T5, HasTheLogitsLossAndGradientNormOfTransformers) {
  int num_cases = 0;
  for (const char* name : {"t5", "t5-v11"}) {
    const fs::path folder = shared_folder() / "reference/families" / name;
    if (!fs::exists(folder)) continue;
    ++num_cases;
    SCOPED_TRACE(name);
    const T5Reference reference(folder);
    T5TestModel test(reference.config, DType::kF32, reference.weights);
    const PackedBatch batches[] = {reference.batch(0), reference.batch(1)};
    test.model().reserve(limits_of(batches[0]));
    const std::vector<float> logits = test.logits(batches[0]);
    const std::vector<float> expected = reference.values("logits", std::ssize(logits));
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-5) << i;
    const int64_t num_targets = batches[0].num_targets + batches[1].num_targets;
    double loss = 0, squares = 0;
    for (const PackedBatch& batch : batches) {
      const bool is_first = &batch == batches;
      loss +=
          test.model()
              .forward_backward(batch, 1.0f / static_cast<float>(num_targets), 0,
                                {is_first ? Update::kOverwrite : Update::kAdd, is_first ? nullptr : &squares})
              .loss_sum;
    }
    EXPECT_NEAR(loss / static_cast<double>(num_targets), reference.values("loss", 1)[0], 1e-5);
    EXPECT_NEAR(std::sqrt(squares), reference.values("grad_norm", 1)[0], 1e-4);
  }
  if (num_cases == 0) GTEST_SKIP() << "no reference runs of T5 under " << shared_folder();
}

}  // namespace
}  // namespace tessera
