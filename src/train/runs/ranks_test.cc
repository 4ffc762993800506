// Compares a run on one rank with runs on several: ranks are threads, nodes differ only in their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "expect_error.h"
#include "io/file.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

// The tiny run's batches divided over `world_size` ranks: 12 rows per step for any number of ranks.
RunSettings share_batch(const RunSpec& spec, int world_size) {
  RunSettings shared = spec;
  shared.batch.rows_per_device = 1;
  shared.batch.accumulation_steps = 12 / world_size;
  return shared;
}

class RanksTest : public testing::TestWithParam<RanksCase> {
 protected:
  RunSettings arguments(const TinyRun& run) const {
    RunSettings spec = share_batch(run.spec, GetParam().ranks.world_size());
    spec.sharding.stage = GetParam().stage;
    spec.sharding.gather_schedule = from_word(GetParam().schedule);
    spec.sharding.persistence_threshold = 0;
    spec.sharding.prefetch_bucket_size = 0;
    spec.output_dir = run.folder() / "ranks";
    return spec;
  }
};

// More layers than are prefetched.
ModelConfig three_layers() {
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 3;
  return config;
}

// Whole steps in an epoch for every number of ranks: otherwise ranks are filled up with rows from the start.
void write_rows(const TinyRun& run, int64_t vocab_size) {
  write_token_rows(run.folder() / "train.safetensors",
                   random_rows(std::vector<int64_t>(24, 9), vocab_size, 3));
}

// Masters that are not updated: what is saved is what was loaded, while steps compute with rounded weights.
TEST_P(RanksTest, QuantizedWeightsLeaveMastersExact) {
  if (GetParam().stage == 0) GTEST_SKIP() << "stage 0 gathers no weights";
  TinyRun run(three_layers());
  write_rows(run, three_layers().vocab_size);
  RunSettings spec = arguments(run);
  spec.precision.dtype = DType::kBF16;
  spec.batch.max_steps = 2;
  spec.schedule.learning_rate = 0;
  const RecordingObserver exact = train_ranks(spec, GetParam().ranks).front();
  const auto saved = read_tensors(spec.output_dir);
  spec.sharding.quantized_weights = true;
  spec.output_dir = run.folder() / "quantized";
  const RecordingObserver quantized = train_ranks(spec, GetParam().ranks).front();
  EXPECT_TRUE(read_tensors(spec.output_dir) == saved);
  ASSERT_EQ(quantized.steps.size(), exact.steps.size());
  for (size_t i = 0; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(quantized.steps[i].loss, exact.steps[i].loss, 5e-3 * exact.steps[i].loss);
    EXPECT_EQ(quantized.steps[i].loss == exact.steps[i].loss, GetParam().ranks.num_nodes == 1);
  }
}

TEST_P(RanksTest, Float32RunEqualsThatOfOneRank) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied ? "tied" : "not tied");
    ModelConfig config = three_layers();
    config.tie_word_embeddings = tied;
    TinyRun run(config);
    write_rows(run, config.vocab_size);
    run.spec.batch.max_steps = 4;
    RunSettings alone = share_batch(run.spec, 1);
    run.spec = alone;
    const RecordingObserver expected = run.train();

    const RunSpec spec = arguments(run);
    const std::vector<RecordingObserver> found = train_ranks(spec, GetParam().ranks);
    expect_same_numbers(found.front(), expected);
    for (size_t rank = 1; rank < found.size(); ++rank) EXPECT_TRUE(found[rank].steps.empty());
    expect_close_weights(spec.output_dir, run.output());
  }
}

// Every owner has whole matrices, however many ranks there are, also if their state is on a disk.
TEST_P(RanksTest, OptimizersOfWholeMatricesDoAsOneRankDoes) {
  for (const char* optim : {"muon", "adafactor"}) {
    SCOPED_TRACE(optim);
    const ModelConfig config = three_layers();
    TinyRun run(config);
    write_rows(run, config.vocab_size);
    run.spec.optimizer.form = from_word(optim);
    run.spec.batch.max_steps = 3;
    run.spec = share_batch(run.spec, 1);
    const RecordingObserver expected = run.train();
    RunSettings spec = arguments(run);
    spec.placement.offload_dir = run.folder() / "offload";
    for (const char* device : {"none", "nvme"}) {
      spec.placement.optimizer_device = from_word(device);
      expect_same_numbers(train_ranks(spec, GetParam().ranks).front(), expected);
      expect_close_weights(spec.output_dir, run.output());
    }
  }
}

std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
    files[name] = read_text_file(folder / name);
  }
  return files;
}

// The learning rate is 0, so any number of ranks ends with the same weights.
TEST_P(RanksTest, FinalModelOfAllRanksIsByteForByteThatOfOne) {
  const ModelConfig config = three_layers();
  TinyRun run(config);
  write_rows(run, config.vocab_size);
  run.spec.batch.max_steps = 2;
  run.spec.schedule.learning_rate = 0;
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    run.spec.precision.dtype = from_word(dtype);
    run.spec.output_dir = run.folder() / fmt::format("alone-{}", dtype);
    run.spec = share_batch(run.spec, 1);
    run.train();
    RunSettings spec = arguments(run);
    spec.output_dir = run.folder() / fmt::format("ranks-{}", dtype);
    train_ranks(spec, GetParam().ranks);
    EXPECT_EQ(files_of(spec.output_dir), files_of(run.output()));
  }
}

// Runs in float32, since in bfloat16 one of the two rounds ties to even and the other so that the remainder
// fits.
TEST_P(RanksTest, FinalModelIsThatOfTheLastCheckpoint) {
  TinyRun run;
  write_rows(run, tiny_config().vocab_size);
  run.spec.batch.max_steps = 3;
  run.spec.saving.strategy = SaveStrategy::kSteps;
  run.spec.saving.steps = 3;
  const RunSpec spec = arguments(run);
  const std::vector<RecordingObserver> observers = train_ranks(spec, GetParam().ranks);
  EXPECT_EQ(files_of(spec.output_dir), files_of(spec.output_dir + "/checkpoint-3"));
  for (const MemoryItem& item : observers.front().plan.memory.items) {
    EXPECT_NE(item.scope, MemoryScope::kFirstRank) << item.name;
    EXPECT_NE(item.name, "export of masters");
  }
}

// The threshold is close to zero, so every loss above the mean of the two before it is a spike.
TEST_P(RanksTest, SkippedStepsLeaveAllRanksAsTheyWere) {
  const ModelConfig config = three_layers();
  TinyRun run(config);
  write_rows(run, config.vocab_size);
  run.spec.batch.max_steps = 6;
  run.spec.schedule.learning_rate = 1e-4;  // two steps make an epoch: one of them always has the larger loss
  run.spec.guards.loss_spike_policy = LossSpikePolicy::kSkip;
  run.spec.guards.loss_spike_window = 2;
  run.spec.guards.loss_spike_sigmas = 1e-9;
  run.spec = share_batch(run.spec, 1);
  const RecordingObserver expected = run.train();

  const RunSpec spec = arguments(run);
  const RecordingObserver found = train_ranks(spec, GetParam().ranks).front();
  expect_same_numbers(found, expected);
  int64_t num_skipped = 0;
  for (size_t i = 0; i < found.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].skipped, expected.steps[i].skipped) << "step " << i + 1;
    EXPECT_TRUE(found.steps[i].slowest_rank.has_value());
    num_skipped += found.steps[i].skipped;
  }
  EXPECT_GT(num_skipped, 0);
  expect_close_weights(spec.output_dir, run.output());
}

TEST_P(RanksTest, WhatIsNotFiniteEndsThemAllWithItsPlace) {
  TinyRun run;
  write_rows(run, tiny_config().vocab_size);
  run.spec.schedule.learning_rate = 1e30;
  run.spec.clipping.max_norm = 0;
  const RunSpec spec = arguments(run);
  expect_error(ExitCode::kNumerics,
               {"step 2: loss", "gradient norm nan", "rank 0 on ", "the gradient of model."},
               [&] { train_ranks(spec, GetParam().ranks); });
}

// Packed weights are kept once per node.
bool plans_packed_weights(const RecordingObserver& observer) {
  for (const MemoryItem& item : observer.plan.memory.items) {
    if (item.name != "packed for the products") continue;
    EXPECT_EQ(item.scope, MemoryScope::kNode);
    return true;
  }
  return false;
}

TEST_P(RanksTest, RepeatsBitByBitInBfloat16) {
  const ModelConfig config = three_layers();
  TinyRun run(config);
  write_rows(run, config.vocab_size);
  run.spec.batch.max_steps = 3;
  run.spec.precision.dtype = DType::kBF16;
  run.spec.precision.save_dtype = DType::kF32;
  RunSettings spec = arguments(run);
  const auto first = train_ranks(spec, GetParam().ranks);
  const auto weights = read_tensors(spec.output_dir);
  spec.output_dir = run.folder() / "again";
  const auto second = train_ranks(spec, GetParam().ranks, 2);
  for (size_t i = 0; i < first.front().steps.size(); ++i) {
    EXPECT_EQ(first.front().steps[i].loss, second.front().steps[i].loss);
    EXPECT_EQ(first.front().steps[i].grad_norm, second.front().steps[i].grad_norm);
  }
  EXPECT_EQ(read_tensors(spec.output_dir), weights);
}

// Every pass rounds the running sums to 8 bits: an error of 2^-9 of each gradient element, at most once per
// pass.
TEST_P(RanksTest, Bfloat16AccumulationStaysClose) {
  const ModelConfig config = three_layers();
  TinyRun run(config);
  write_rows(run, config.vocab_size);
  run.spec.batch.max_steps = 3;
  run.spec.precision.dtype = DType::kBF16;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  RunSettings spec = arguments(run);
  const auto exact = train_ranks(spec, GetParam().ranks);
  spec.sharding.grad_accum_dtype = DType::kBF16;
  const auto rounded = train_ranks(spec, GetParam().ranks);
  ASSERT_EQ(exact.front().steps.size(), rounded.front().steps.size());
  for (size_t i = 0; i < exact.front().steps.size(); ++i) {
    const StepMetrics& expected = exact.front().steps[i];
    const StepMetrics& found = rounded.front().steps[i];
    EXPECT_NEAR(found.loss, expected.loss, 0.02) << "step " << i + 1;
    EXPECT_NEAR(found.grad_norm, expected.grad_norm, 0.03 * expected.grad_norm) << "step " << i + 1;
    EXPECT_NE(found.grad_norm, expected.grad_norm) << "step " << i + 1;
  }
}

TEST_P(RanksTest, PackedWeightsChangeNoBit) {
  ThreadPool pool(1);
  if (make_cpu_ops(pool)->packed_weight_bytes(32, 32, DType::kBF16) == 0) {
    GTEST_SKIP() << "no packed forms here";
  }
  for (const bool tied : {false, true}) {
    ModelConfig config = three_layers();
    config.tie_word_embeddings = tied;
    TinyRun run(config);
    write_rows(run, config.vocab_size);
    run.spec.batch.max_steps = 4;
    run.spec.precision.dtype = DType::kBF16;
    run.spec.precision.save_dtype = DType::kF32;
    run.spec.data.dataset = {run.folder() / "long.safetensors"};
    write_token_rows(run.folder() / "long.safetensors",  // few rows of x are multiplied without packed forms
                     random_rows(std::vector<int64_t>(24, 40), config.vocab_size, 3));
    run.spec.data.eval_dataset = {run.folder() / "eval.safetensors"};
    run.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run.spec.evaluation.steps = 2;
    RunSettings spec = arguments(run);
    spec.placement.pack_weights = AutoChoice::kNever;
    const auto plain = train_ranks(spec, GetParam().ranks);
    const auto expected = read_tensors(spec.output_dir);
    EXPECT_FALSE(plans_packed_weights(plain.front()));
    spec.placement.pack_weights =
        GetParam().schedule == "per_layer" ? AutoChoice::kAuto : AutoChoice::kAlways;
    spec.output_dir = run.folder() / "packed";
    const auto packed = train_ranks(spec, GetParam().ranks, 2);
    EXPECT_EQ(plans_packed_weights(packed.front()), GetParam().schedule != "per_layer");
    for (size_t i = 0; i < plain.front().steps.size(); ++i) {
      EXPECT_EQ(packed.front().steps[i].loss, plain.front().steps[i].loss) << "step " << i + 1;
      EXPECT_EQ(packed.front().steps[i].grad_norm, plain.front().steps[i].grad_norm) << "step " << i + 1;
    }
    ASSERT_EQ(packed.front().evaluations.size(), plain.front().evaluations.size());
    ASSERT_FALSE(plain.front().evaluations.empty());
    EXPECT_EQ(packed.front().evaluations.back().loss, plain.front().evaluations.back().loss);
    EXPECT_EQ(read_tensors(spec.output_dir), expected) << (tied ? "tied" : "");
  }
}

std::vector<RanksCase> cases() {
  std::vector<RanksCase> result = {{{1, 2}, 2, "per_step"}, {{1, 3}, 2, "per_step"}, {{1, 4}, 2, "per_step"}};
  std::ranges::copy(cases_of_several_nodes(), std::back_inserter(result));
  return result;
}

INSTANTIATE_TEST_SUITE_P(Cases, RanksTest, testing::ValuesIn(drawn_cases(cases())),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace tessera
