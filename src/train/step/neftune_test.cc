#include "train/step/neftune.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/rows/batch_plan.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

class NeftuneTest : public testing::Test {
 protected:
  NeftuneTest() {
    DatasetOptions options;
    options.sources = {(tiny_.folder() / "train.safetensors").string()};
    options.cache_folder = tiny_.folder() / "cache";
    dataset_.emplace(Dataset::open(options, nullptr, tiny_config().vocab_size, pool_));
  }
  // [tokens of the rows, D]
  std::vector<std::vector<float>> noise_of(int64_t step, const std::vector<int64_t>& rows, size_t D,
                                           uint64_t seed = 7) {
    PackedBatch batch;
    make_packed_batch(*dataset_, rows, 0, &batch);
    NeftuneNoise noise(kAlpha, seed);
    noise.begin(step, rows, *dataset_, batch);
    std::vector<std::vector<float>> out(static_cast<size_t>(batch.num_tokens()), std::vector<float>(D));
    for (size_t t = 0; t < out.size(); ++t) noise.fill(static_cast<int64_t>(t), out[t]);
    return out;
  }

  static constexpr double kAlpha = 5;
  static constexpr int64_t kLength = 9;
  TinyRun tiny_;
  ThreadPool pool_{1};
  std::optional<Dataset> dataset_;
};

TEST_F(NeftuneTest, FollowsFromSeedStepRowAndPositionAlone) {
  const auto both = noise_of(3, {2, 5}, 13);
  const auto second = noise_of(3, {5}, 13);
  EXPECT_EQ(std::vector(both.begin() + kLength, both.end()), second);
  EXPECT_NE(noise_of(4, {5}, 13), second);
  EXPECT_NE(noise_of(3, {6}, 13), second);
  EXPECT_NE(noise_of(3, {5}, 13, 8), second);
  EXPECT_NE(second[0], second[1]);
}

TEST_F(NeftuneTest, TokensAfterTheBatchHaveNone) {
  PackedBatch batch;
  make_packed_batch(*dataset_, std::vector<int64_t>{2, 5}, 0, &batch);
  NeftuneNoise noise(kAlpha, 7);
  noise.begin(3, std::vector<int64_t>{2, 5}, *dataset_, batch);
  std::vector<float> values(13, NAN);
  noise.fill(batch.num_tokens(), values);
  EXPECT_EQ(values, std::vector<float>(13, 0.0f));
}

// Uniform in +-alpha / sqrt(L D): the mean and the variance a^2 / 3 within four standard errors.
TEST_F(NeftuneTest, IsUniformWithTheMagnitudeOfTheFormula) {
  constexpr size_t kHidden = 1001;  // not a multiple of the four values of a counter
  const double bound = kAlpha / std::sqrt(static_cast<double>(kLength) * kHidden);
  double sum = 0, squares = 0, largest = 0;
  int64_t count = 0;
  for (const std::vector<float>& row : noise_of(1, {0, 1, 2, 3}, kHidden)) {
    for (const float value : row) {
      sum += value;
      squares += static_cast<double>(value) * value;
      largest = std::max<double>(largest, std::abs(value));
      ++count;
    }
  }
  const auto n = static_cast<double>(count);
  EXPECT_LE(largest, bound * (1 + 1e-6));
  EXPECT_GT(largest, 0.999 * bound);
  EXPECT_NEAR(sum / n, 0, 4 * bound / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, bound * bound / 3, 4 * bound * bound * std::sqrt(4.0 / 45 / n));
}

// Noise on the embedding of a token equals a table with one row per token, whose rows have the noise added,
// divided by the factor that the table's output has in Gemma.
void expect_loss_of_noisy_table(const ModelConfig& config, DType dtype) {
  const ParameterLayout layout = parameter_layout(config);
  std::vector<float> weights = random_weights(layout, 0.3f, 1);
  // Every token occurs once, in two sequences.
  TokenRow first, second;
  for (int32_t id = 0; id < 5; ++id) first.ids.push_back(id);
  for (int32_t id = 5; id < 12; ++id) second.ids.push_back(id);
  first.labels = first.ids;
  second.labels = second.ids;
  const PackedBatch batch = pack({first, second});
  const auto noise_at = [&](int64_t token, size_t d) {
    return 0.01f * static_cast<float>(token + 1) * (d % 2 == 0 ? 1.0f : -1.0f);
  };
  TestModel noisy(config, dtype, weights);
  noisy.model().reserve(limits_of(batch));
  const double plain_loss = noisy.model().forward_loss(batch).loss_sum;
  noisy.model().add_embedding_noise([&](int64_t token, std::span<float> noise_D) {
    for (size_t d = 0; d < noise_D.size(); ++d) noise_D[d] = noise_at(token, d);
  });
  EXPECT_EQ(noisy.model().forward_loss(batch).loss_sum, plain_loss) << "not during evaluation";
  const double found = noisy.model().forward_backward(batch, 1).loss_sum;

  const auto D = static_cast<size_t>(config.hidden_size);
  const auto table = static_cast<size_t>(layout.at("model.embed_tokens.weight").offset);
  const auto factor = static_cast<float>(config.rounds_embedding_scale ? config.embedding_scale : 1);
  for (size_t t = 0; t < 12; ++t) {
    for (size_t d = 0; d < D; ++d)
      weights[table + t * D + d] += noise_at(static_cast<int64_t>(t), d) / factor;
  }
  TestModel expected(config, dtype, weights);
  expected.model().reserve(limits_of(batch));
  const double tolerance = dtype == DType::kF32 ? 1e-5 : 2e-2;
  EXPECT_NEAR(found, expected.model().forward_backward(batch, 1).loss_sum, tolerance * found);
  EXPECT_GT(std::abs(found - plain_loss), 1e-3);
}

TEST(NeftuneModel, LossIsThatOfTheEmbeddingPlusNoise) {
  ModelConfig config = tiny_config();
  for (const DType dtype : {DType::kF32, DType::kBF16}) expect_loss_of_noisy_table(config, dtype);
  config.embedding_scale = 3;
  expect_loss_of_noisy_table(config, DType::kF32);
  config.rounds_embedding_scale = true;
  expect_loss_of_noisy_table(config, DType::kF32);
}

TEST(NeftuneRun, DoesNotDependOnRanksThreadsOrMicroBatches) {
  SavingRun run;
  run.spec.batch.accumulation_steps = 4;
  run.spec.batch.global_rows = 4;  // the same rows on any ranks
  const std::vector<double> plain = losses_of_steps(run.run());
  run.spec.objective.neftune_alpha = 5;
  run.spec.output_dir = run.folder() / "noisy";
  const std::vector<double> expected = losses_of_steps(run.run());
  EXPECT_NE(expected, plain);
  for (const Ranks& ranks : {Ranks{1, 2}, Ranks{2, 2}}) {
    SavingRun several = run;
    several.ranks = ranks;
    several.spec.batch.accumulation_steps = 4 / ranks.world_size();
    several.spec.output_dir = run.folder() / fmt::format("ranks-{}", ranks.world_size());
    const std::vector<double> found = losses_of_steps(several.run());
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4) << "step " << i + 1;
  }
  run.spec.placement.gradient_checkpointing = true;
  run.spec.output_dir = run.folder() / "recomputed";
  EXPECT_EQ(losses_of_steps(run.run()), expected);
}

TEST(NeftuneRun, ResumesExactly) {
  SavingRun run;
  run.spec.objective.neftune_alpha = 5;
  run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.spec.resume = parse_resume("true");
  resumed.run();
  expect_same_run(resumed.output(), run.output());
}

}  // namespace
}  // namespace tessera
