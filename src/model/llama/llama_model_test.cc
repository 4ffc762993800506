#include "model/llama/llama_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/memory.h"
#include "model/llama/activations.h"
#include "support/model_test_support.h"
#include "support/reference_model.h"
#include "support/values_near.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 7;

// Loss and gradients of one forward and backward pass.
struct StepResult {
  LossSums sums;
  std::vector<float> gradients;
};

StepResult run_step(const ModelConfig& config, DType dtype, const PackedBatch& batch,
                    const ActivationLimits& limits, int64_t num_threads = 2) {
  const auto weights = random_weights(parameter_layout(config), 0.3f, kSeed);
  TestModel test(config, dtype, weights, num_threads);
  test.model().reserve(limits);
  StepResult result;
  result.sums = test.model().forward_backward(batch, 0.25f, 0.05f);
  result.gradients = test.gradients();
  return result;
}

void expect_identical(const StepResult& found, const StepResult& expected) {
  EXPECT_EQ(found.sums.loss_sum, expected.sums.loss_sum);
  EXPECT_EQ(found.sums.num_targets, expected.sums.num_targets);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  const auto difference =
      std::mismatch(found.gradients.begin(), found.gradients.end(), expected.gradients.begin());
  EXPECT_TRUE(difference.first == found.gradients.end())
      << "element " << difference.first - found.gradients.begin() << ": " << *difference.first
      << ", expected " << *difference.second;
}

// torch.nn.Embedding drops the gradient of padding_idx; the LM head of tied embeddings still gets its own.
TEST(Model, PaddingTokenGivesItsEmbeddingNoGradient) {
  ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({20, 30}, config.vocab_size, kSeed));
  const StepResult without = run_step(config, DType::kF32, batch, limits_of(batch));
  const int64_t padding_id = batch.input_ids[3];
  config.pad_token_id = padding_id;
  const StepResult with = run_step(config, DType::kF32, batch, limits_of(batch));

  StepResult expected = without;
  const ParameterLayout layout = parameter_layout(config);
  const int64_t row = layout.at("model.embed_tokens.weight").offset + padding_id * config.hidden_size;
  const auto begin = expected.gradients.begin() + row;
  ASSERT_GT(largest_of({begin, begin + config.hidden_size}), 0);
  std::fill(begin, begin + config.hidden_size, 0.0f);
  expect_identical(with, expected);
}

class ModelOptions : public testing::TestWithParam<std::tuple<NamedConfig, DType>> {
 protected:
  const ModelConfig& config() const { return std::get<0>(GetParam()).config; }
  DType dtype() const { return std::get<1>(GetParam()); }
  PackedBatch batch() const { return pack(random_rows({9, 1, 17, 5}, config().vocab_size, kSeed)); }
};

TEST_P(ModelOptions, GradientCheckpointingGivesTheSameBits) {
  const StepResult kept = run_step(config(), dtype(), batch(), limits_of(batch()));
  ASSERT_GT(largest_of(kept.gradients), 0);
  expect_identical(run_step(config(), dtype(), batch(), limits_of(batch(), true)), kept);
}

TEST_P(ModelOptions, KeepingSomeOutputsGivesTheSameBits) {
  const StepResult kept = run_step(config(), dtype(), batch(), limits_of(batch()));
  ActivationLimits limits = limits_of(batch(), true);
  for (int64_t count = 1; count <= num_keepable_outputs(config()); ++count) {
    SCOPED_TRACE(count);
    limits.num_kept_outputs = count;
    expect_identical(run_step(config(), dtype(), batch(), limits), kept);
  }
}

TEST_P(ModelOptions, NumberOfThreadsDoesNotChangeABit) {
  const StepResult one = run_step(config(), dtype(), batch(), limits_of(batch()), 1);
  for (const int64_t num_threads : {2, 3, 5}) {
    SCOPED_TRACE(num_threads);
    expect_identical(run_step(config(), dtype(), batch(), limits_of(batch()), num_threads), one);
  }
}

TEST_P(ModelOptions, ABatchBelowTheLimitsGivesTheSameBits) {
  const StepResult exact = run_step(config(), dtype(), batch(), limits_of(batch()));
  for (const bool checkpointing : {false, true}) {
    ActivationLimits wide = limits_of(batch(), checkpointing);
    wide.max_tokens += 37;
    wide.max_sequence_length += 11;
    expect_identical(run_step(config(), dtype(), batch(), wide), exact);
  }
}

TEST_P(ModelOptions, LossAloneEqualsLossOfTraining) {
  const auto weights = random_weights(parameter_layout(config()), 0.3f, kSeed);
  for (const bool training : {false, true}) {
    TestModel test(config(), dtype(), weights);
    ActivationLimits limits = limits_of(batch());
    limits.training = training;
    test.model().reserve(limits);
    const LossSums alone = test.model().forward_loss(batch(), 0.05f);
    EXPECT_EQ(alone.loss_sum, run_step(config(), dtype(), batch(), limits_of(batch())).sums.loss_sum);
    EXPECT_EQ(alone.num_targets, batch().num_targets);
  }
}

TEST_P(ModelOptions, ReserveAllocatesWhatWasPredictedAndTheArenasAreUsedUp) {
  const auto weights = random_weights(parameter_layout(config()), 0.3f, kSeed);
  TestModel test(config(), dtype(), weights);
  std::vector<ActivationLimits> all(5, limits_of(batch()));
  all[0].training = false;
  all[2].gradient_checkpointing = all[3].gradient_checkpointing = all[4].gradient_checkpointing = true;
  all[3].num_kept_outputs = 2;
  all[4].offload_inputs = true;
  for (const ActivationLimits& limits : all) {
    const ActivationPolicy policy = activation_policy(config(), dtype(), limits);
    const ActivationBytes predicted = test.model().activation_bytes(limits);
    test.model().reserve(limits);
    const ActivationBytes reserved = test.model().reserved_bytes();
    EXPECT_EQ(reserved.saved_bytes, predicted.saved_bytes);
    EXPECT_EQ(reserved.working_bytes, predicted.working_bytes);
    EXPECT_EQ(reserved.workspace_bytes, predicted.workspace_bytes);

    // A full batch needs every byte: with one cache line less the arena overflows.
    Arena measured_saved = Arena::measuring();
    Arena measured_working = Arena::measuring();
    Activations activations;
    activations.lay_out(config(), dtype(), limits.max_tokens, policy, measured_saved, measured_working, {});
    PageBuffer memory(measured_saved.high_water_bytes() + measured_working.high_water_bytes());
    const auto block = memory.as<std::byte>();
    const auto num_saved = static_cast<size_t>(measured_saved.high_water_bytes());
    Arena saved(block.first(num_saved));
    Arena working(block.subspan(num_saved));
    activations.lay_out(config(), dtype(), limits.max_tokens, policy, saved, working, {});
    EXPECT_EQ(saved.high_water_bytes(), measured_saved.high_water_bytes());
    EXPECT_EQ(working.high_water_bytes(), measured_working.high_water_bytes());
    Arena short_saved(block.first(num_saved - kCacheLineBytes));
    Arena enough(block.subspan(num_saved));
    EXPECT_THROW(activations.lay_out(config(), dtype(), limits.max_tokens, policy, short_saved, enough, {}),
                 Error);
  }
}

// A partial batch has a layout of its own, with its own pieces of logits.
TEST(ModelWorkspace, HasRoomForEveryBatchUpToItsLimits) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  ModelConfig config = tiny_config();
  config.vocab_size = 70'001;  // whole rows of logits up to 239 tokens, then chunks of other widths
  const LlamaModel model(config, DType::kBF16, *ops);
  for (const bool pack_weights : {false, true}) {
    ActivationLimits limits;
    limits.max_sequence_length = 64;
    limits.pack_weights = pack_weights;
    int64_t last = 0;
    for (limits.max_tokens = 1; limits.max_tokens <= 2100; limits.max_tokens += 13) {
      const int64_t bytes = model.activation_bytes(limits).workspace_bytes;
      EXPECT_GE(bytes, last) << limits.max_tokens << " tokens";
      last = bytes;
    }
  }
}

// Loss and gradients of two micro-batches; the first overwrites whatever the gradients held.
TEST_P(ModelOptions, TheFirstMicroBatchReplacesWhatTheGradientsHold) {
  const auto weights = random_weights(parameter_layout(config()), 0.3f, kSeed);
  const PackedBatch second = pack(random_rows({4, 6}, config().vocab_size, kSeed + 1));
  const ParameterLayout layout = parameter_layout(config());
  TestModel added(config(), dtype(), weights), written(config(), dtype(), weights);
  added.model().reserve(limits_of(batch()));
  written.model().reserve(limits_of(batch()));
  written.fill_gradients(std::nanf(""));
  written.model().forward_backward(batch(), 0.5f, 0.1f, Update::kOverwrite);
  added.model().forward_backward(batch(), 0.5f, 0.1f);
  for (TestModel* test : {&added, &written}) test->model().forward_backward(second, 0.5f, 0.1f);
  for (const Parameter& parameter : layout.parameters()) {
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
      ASSERT_EQ(written.gradients()[static_cast<size_t>(i)], added.gradients()[static_cast<size_t>(i)])
          << parameter.name << " element " << i - parameter.offset;
    }
  }
}

TEST_P(ModelOptions, AFirstMicroBatchWithoutTargetsLeavesZeroGradients) {
  PackedBatch without_targets = batch();
  std::fill(without_targets.targets.begin(), without_targets.targets.end(), kIgnoredLabel);
  without_targets.num_targets = 0;
  TestModel test(config(), dtype(), random_weights(parameter_layout(config()), 0.3f, kSeed));
  test.model().reserve(limits_of(batch()));
  test.fill_gradients(std::nanf(""));
  EXPECT_EQ(test.model().forward_backward(without_targets, 1.0f, 0, Update::kOverwrite).num_targets, 0);
  EXPECT_THAT(test.gradients(), testing::Each(0.0f));
  test.fill_gradients(3);
  EXPECT_EQ(test.model().forward_backward(without_targets, 1.0f, 0, Update::kAdd).num_targets, 0);
  EXPECT_THAT(test.gradients(), testing::Each(3.0f));
}

// The last micro-batch of a step returns the sum of squares of the whole step's gradients.
TEST_P(ModelOptions, TheLastMicroBatchKnowsTheGradientNorm) {
  const ParameterLayout layout = parameter_layout(config());
  const PackedBatch second = pack(random_rows({4, 6}, config().vocab_size, kSeed + 1));
  PackedBatch without_targets = second;
  std::fill(without_targets.targets.begin(), without_targets.targets.end(), kIgnoredLabel);
  for (const bool checkpointing : {false, true}) {
    std::vector<double> of_runs;
    for (const int64_t num_threads : {1, 2, 4, 4}) {
      TestModel test(config(), dtype(), random_weights(layout, 0.3f, kSeed), num_threads);
      test.model().reserve(limits_of(batch(), checkpointing));
      test.fill_gradients(std::nanf(""));  // including alignment gaps, which do not count
      const auto check = [&](const PackedBatch& last, Update update) {
        double squares = 0;
        test.model().forward_backward(last, 0.5f, 0.1f, {update, &squares});
        const double expected = sum_of_squares(layout, test.gradients());
        EXPECT_NEAR(squares, expected, 1e-12 * expected);
        return squares;
      };
      check(batch(), Update::kOverwrite);
      of_runs.push_back(check(second, Update::kAdd));
      check(without_targets, Update::kAdd);
      EXPECT_EQ(check(without_targets, Update::kOverwrite), 0);
    }
    EXPECT_THAT(of_runs, testing::Each(of_runs.front()));
  }
}

INSTANTIATE_TEST_SUITE_P(Options, ModelOptions,
                         testing::Combine(testing::ValuesIn(all_option_configs()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::string(dtype_name(std::get<1>(test.param)));
                         });

TEST(Activations, BytesAreThoseOfTheFormula) {
  ModelConfig config = tiny_config();
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.head_dim = 16;
  config.num_hidden_layers = 5;
  constexpr int64_t kTokens = 32;  // makes every tensor a whole number of cache lines
  const int64_t D = 64, F = 96, H = 4, G = 2, E = 16, L = 5, A = 2;
  for (const bool head_norms : {false, true}) {
    config.qk_norm = head_norms;
    const auto saved_bytes = [&](bool training, bool checkpointing, int64_t num_kept_outputs) {
      const ActivationLimits limits = {kTokens, kTokens, training, checkpointing, num_kept_outputs};
      Arena saved = Arena::measuring();
      Arena working = Arena::measuring();
      Activations().lay_out(config, DType::kBF16, kTokens, activation_policy(config, DType::kBF16, limits),
                            saved, working, {});
      return saved.high_water_bytes();
    };
    const int64_t Q = (H + 2 * G) * E;
    const int64_t gate_up = 2 * A * F;
    const int64_t rest = A * (2 * D + Q + H * E) + 4 * H + (head_norms ? A * Q + 4 * (H + G) : 0);
    EXPECT_EQ(saved_bytes(true, false, 0), kTokens * (L * (rest + gate_up) + A * D));
    EXPECT_EQ(saved_bytes(true, true, 0), kTokens * ((L - 1) * A * D + rest + A * D));
    EXPECT_EQ(saved_bytes(false, false, 0), kTokens * rest);
    // Everything that can be kept is what training without checkpointing keeps.
    EXPECT_EQ(saved_bytes(true, true, num_keepable_outputs(config)), saved_bytes(true, false, 0));
  }
}

// Attention is the cheapest to recompute in rows of 32 tokens and the most expensive in long ones.
TEST(KeptOutputs, AreThoseWhoseRecomputationTakesTheMostTimePerByte) {
  ModelConfig config = tiny_config();
  config.hidden_size = 64;
  config.head_dim = 16;
  config.num_hidden_layers = 3;
  const auto first_kept = [&](int64_t row_tokens, int64_t count) {
    std::string text;
    for (const KeptOutputs& kept :
         kept_outputs(config, DType::kBF16, {row_tokens, row_tokens, true, true, count})) {
      text += fmt::format("{}{}{}{} ", kept.qkv ? "q" : "", kept.attention ? "a" : "", kept.stream ? "s" : "",
                          kept.gate_up ? "g" : "");
    }
    return text;
  };
  EXPECT_EQ(first_kept(32, 0), "   ");
  EXPECT_EQ(first_kept(32, 1), "q   ");
  EXPECT_EQ(first_kept(32, 4), "qs qs  ");
  EXPECT_EQ(first_kept(32, 8), "qasg qsg g ");
  EXPECT_EQ(first_kept(4096, 1), "a   ");
  EXPECT_EQ(first_kept(4096, 3), "qa a  ");
  EXPECT_EQ(first_kept(4096, num_keepable_outputs(config)), "qasg qasg g ");
}

TEST(Model, PackedSequencesEqualTheSumOfSeparateRuns) {
  for (const NamedConfig& named : all_option_configs()) {
    SCOPED_TRACE(named.name);
    const auto rows = random_rows({12, 3, 1, 20, 7}, named.config.vocab_size, kSeed);
    const PackedBatch packed = pack(rows);
    const auto weights = random_weights(parameter_layout(named.config), 0.3f, kSeed);
    TestModel together(named.config, DType::kF32, weights);
    TestModel apart(named.config, DType::kF32, weights);
    together.model().reserve(limits_of(packed));
    apart.model().reserve(limits_of(packed));
    const LossSums expected = together.model().forward_backward(packed, 1.0f);
    LossSums sums;
    for (const TokenRow& row : rows) {
      const LossSums one = apart.model().forward_backward(pack({row}), 1.0f);
      sums.loss_sum += one.loss_sum;
      sums.num_targets += one.num_targets;
    }
    EXPECT_EQ(sums.num_targets, expected.num_targets);
    // The terms are added in another order: each of the 43 tokens adds one rounding of the running sum.
    const double rounding = static_cast<double>(packed.num_tokens()) * 0x1.0p-24;
    EXPECT_NEAR(sums.loss_sum, expected.loss_sum, rounding * expected.loss_sum);
    expect_near(apart.gradients(), together.gradients(), rounding * largest_of(together.gradients()),
                "gradient");
  }
}

// Whole training passes with packed forms, before and after the weights change.
TEST(Model, KeptPackedWeightsChangeNothing) {
  ModelConfig tied = tiny_config();
  tied.tie_word_embeddings = true;
  for (const ModelConfig& config : {tiny_config(), tied}) {
    const PackedBatch batch = pack(random_rows({19, 16}, config.vocab_size, kSeed));
    TestModel plain(config, DType::kBF16, random_weights(parameter_layout(config), 0.3f, kSeed));
    TestModel packed(config, DType::kBF16, random_weights(parameter_layout(config), 0.3f, kSeed));
    ActivationLimits limits = limits_of(batch);
    plain.model().reserve(limits);
    limits.pack_weights = true;
    packed.model().reserve(limits);
    EXPECT_EQ(packed.model().reserved_bytes().packed_bytes,
              packed.model().activation_bytes(limits).packed_bytes);
    for (const uint64_t seed : {kSeed, kSeed + 1}) {
      for (TestModel* test : {&plain, &packed}) {
        test->set_weights(random_weights(parameter_layout(config), 0.3f, seed));
        test->fill_gradients(std::nanf(""));
      }
      const double loss = plain.model().forward_backward(batch, 1.0f, 0, Update::kOverwrite).loss_sum;
      EXPECT_EQ(packed.model().forward_backward(batch, 1.0f, 0, Update::kOverwrite).loss_sum, loss);
      EXPECT_EQ(packed.model().forward_loss(batch).loss_sum, loss);
      for (const Parameter& parameter : plain.model().layout().parameters()) {
        for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
          ASSERT_EQ(packed.gradients()[static_cast<size_t>(i)], plain.gradients()[static_cast<size_t>(i)])
              << parameter.name << " at " << i - parameter.offset;
        }
      }
    }
  }
}

TEST(Model, GradientsAccumulate) {
  const ModelConfig config = tiny_config();
  const PackedBatch batch = pack(random_rows({9, 6}, config.vocab_size, kSeed));
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, kSeed));
  test.model().reserve(limits_of(batch));
  test.model().forward_backward(batch, 0.5f);
  const std::vector<float> once = test.gradients();
  test.model().forward_backward(batch, 0.5f);
  std::vector<float> doubled = once;
  for (float& value : doubled) value *= 2;
  // The second pass adds to nonzero sums: up to one rounding per token.
  expect_near(test.gradients(), doubled, 15 * 0x1.0p-24 * largest_of(doubled), "gradient");
}

// Padded rows as Hugging Face's collator makes them: pad tokens on the right, labelled -100, loss computed
// over the whole rectangle.
TEST(Model, DroppedPaddingChangesNothing) {
  constexpr int64_t kPaddedLength = 19;
  for (const NamedConfig& named : all_option_configs()) {
    SCOPED_TRACE(named.name);
    const ModelConfig& config = named.config;
    const auto rows = random_rows({19, 4, 11, 2}, config.vocab_size, kSeed);
    const PackedBatch packed = pack(rows);
    const auto weights = random_weights(parameter_layout(config), 0.3f, kSeed);

    ReferenceModel<float> reference(config);
    reference.weights() = weights;
    double expected_loss = 0;
    int64_t expected_targets = 0;
    std::vector<float> expected_logits;  // at positions that are not padding
    for (TokenRow row : rows) {
      const auto length = static_cast<int64_t>(row.ids.size());
      row.ids.resize(kPaddedLength, /*pad_token_id=*/0);
      row.labels.resize(kPaddedLength, kIgnoredLabel);
      expected_loss += reference.loss_sum(row.ids, row.labels, 0, &expected_targets);
      const auto logits = reference.logits(row.ids);
      for (int64_t t = 0; t < length; ++t) {
        const auto& at_t = logits[static_cast<size_t>(t)];
        expected_logits.insert(expected_logits.end(), at_t.begin(), at_t.end());
      }
    }

    TestModel test(config, DType::kF32, weights);
    test.model().reserve(limits_of(packed));
    const LossSums sums = test.model().forward_loss(packed);
    // Two float32 computations of 2 layers with up to 17 results each, sums of up to 12 terms.
    const double rounding = 2 * std::sqrt(2 * 17.0) * std::sqrt(12.0) * 0x1.0p-24;
    EXPECT_EQ(sums.num_targets, expected_targets);
    EXPECT_NEAR(sums.loss_sum, expected_loss, rounding * expected_loss);
    expect_near(test.logits(packed), expected_logits, rounding * largest_of(expected_logits), "logit");
  }
}

TEST(Model, ABatchWithoutTargetsHasNoLossAndNoGradient) {
  const ModelConfig config = tiny_config();
  auto rows = random_rows({5, 3}, config.vocab_size, kSeed);
  for (TokenRow& row : rows) std::fill(row.labels.begin(), row.labels.end(), kIgnoredLabel);
  const StepResult result = run_step(config, DType::kBF16, pack(rows), limits_of(pack(rows)));
  EXPECT_EQ(result.sums.loss_sum, 0);
  EXPECT_EQ(result.sums.num_targets, 0);
  EXPECT_EQ(largest_of(result.gradients), 0);
}

TEST(Model, AlignmentGapsReceiveNoGradient) {
  const ModelConfig config = all_option_configs().back().config;
  const PackedBatch batch = pack(random_rows({9, 6}, config.vocab_size, kSeed));
  const StepResult result = run_step(config, DType::kF32, batch, limits_of(batch));
  const ParameterLayout layout = parameter_layout(config);
  int64_t end = 0;
  int64_t num_gap_elements = 0;
  for (const Parameter& parameter : layout.parameters()) {
    for (int64_t i = end; i < parameter.offset; ++i, ++num_gap_elements) {
      EXPECT_EQ(result.gradients[static_cast<size_t>(i)], 0) << "in front of " << parameter.name;
    }
    end = parameter.offset + parameter.num_elements;
  }
  EXPECT_GT(num_gap_elements, 0);
}

TEST(Model, ABatchThatBreaksThePromisesIsABug) {
  const ModelConfig config = tiny_config();
  const PackedBatch good = pack(random_rows({5, 3}, config.vocab_size, kSeed));
  TestModel test(config, DType::kF32, random_weights(parameter_layout(config), 0.3f, kSeed));
  test.model().reserve(limits_of(good));
  const auto refused = [&](auto change, const char* text) {
    PackedBatch batch = good;
    change(batch);
    EXPECT_THAT([&] { test.model().forward_loss(batch); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(text)));
  };
  refused([](PackedBatch& b) { b.input_ids[2] = 13; }, "token 2 is 13, vocabulary 13");
  refused([](PackedBatch& b) { b.input_ids[0] = -1; }, "token 0 is -1");
  refused([](PackedBatch& b) { b.targets[1] = 13; }, "target 1 is 13");
  refused([](PackedBatch& b) { b.targets[1] = -1; }, "target 1 is -1");
  refused([](PackedBatch& b) { b.positions[4] = 5; }, "position 4 is 5, reserved for 5");
  refused([](PackedBatch& b) { b.positions.pop_back(); }, "8 ids, 7 positions");
  refused([](PackedBatch& b) { b.cu_seqlens = {0, 8}; }, "sequence 0 has 8 tokens, reserved for 5");
  refused([](PackedBatch& b) { b.cu_seqlens = {0, 5}; }, "do not span the 8 tokens");
  refused([](PackedBatch& b) { b.cu_seqlens = {0, 5, 4, 8}; }, "sequence 1 has -1 tokens");
  EXPECT_NO_THROW(test.model().forward_loss(good));
}

}  // namespace
}  // namespace tessera
