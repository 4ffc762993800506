// A pass computed twice: sound machines give the same bits, and a flipped bit is located.
#include "train/guards/replay_check.h"
#include "support/train/from_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "expect_error.h"
#include "ops/cpu_ops.h"
#include "ops/forwarding_ops.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

enum class Product { kForward, kWeightGradient };

// Once armed, flips one mantissa bit in the result of the next product of a kind, then disarms itself.
class FlippingOps : public ForwardingOps {
 public:
  FlippingOps(std::unique_ptr<Ops> ops, Product product, std::atomic<bool>* armed)
      : ForwardingOps(*ops), ops_(std::move(ops)), product_(product), armed_(armed) {}

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override {
    run();
    const std::string_view product = product_ == Product::kForward ? "linear" : "linear_backward_weight";
    if (call.name == product) flip(*call.outputs[0]);
  }
  // Flips the highest mantissa bit of the last element of the middle row: where queries, keys and values are
  // adjacent, that is a value many tokens see.
  void flip(TensorView values) {
    if (!armed_->exchange(false)) return;
    const int64_t element_bytes = dtype_bytes(values.dtype());
    const int64_t last = (values.dim(0) / 2 + 1) * values.dim(1) - 1;
    std::byte* element = values.bytes() + last * element_bytes;
    element[element_bytes - 2] ^= std::byte{0x40};
  }

  std::unique_ptr<Ops> ops_;
  Product product_;
  std::atomic<bool>* armed_;
};

// Flips on `bad_rank`, if there is one, from the second step on.
std::vector<RecordingObserver> train_with_flip(const RunSpec& spec, const Ranks& ranks, int bad_rank,
                                               Product product) {
  std::vector<RecordingObserver> observers(static_cast<size_t>(ranks.world_size()));
  std::atomic<bool> armed = false;
  observers[0].after_step = [&](const StepMetrics& metrics) { armed = metrics.step == 1; };
  const auto train = [&](Communicator& comm) {
    const int rank = comm.world().rank;
    const OpsFactory make_ops = [&](ThreadPool& pool) -> std::unique_ptr<Ops> {
      if (rank != bad_rank) return make_cpu_ops(pool);
      return std::make_unique<FlippingOps>(make_cpu_ops(pool), product, &armed);
    };
    ThreadPool pool(1);
    Trainer trainer(spec, pool, observers[static_cast<size_t>(rank)], comm, make_ops);
    trainer.run();
  };
  if (ranks.world_size() == 1) {
    train(single_process());
  } else {
    run_ranks(ranks, train);
  }
  return observers;
}

class ReplayCheckTest : public testing::TestWithParam<RanksCase> {
 protected:
  ReplayCheckTest() {
    run_.spec.batch.rows_per_device = 1;
    run_.spec.batch.accumulation_steps = 2;
    run_.spec.batch.max_steps = 3;
    run_.spec.sharding.stage = GetParam().stage;
    run_.spec.sharding.gather_schedule = from_word(GetParam().schedule);
    run_.spec.sharding.persistence_threshold = 0;
  }

  TinyRun run_;
};

TEST_P(ReplayCheckTest, ChangesNoBitAndFindsNothingOnASoundMachine) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const char* merge : {"never", "always"}) {
      SCOPED_TRACE(fmt::format("{}, merge_micro_batches {}", dtype, merge));
      run_.spec.precision.dtype = from_word(dtype);
      run_.spec.placement.merge_micro_batches = from_word(merge);
      run_.spec.guards.replay_check_steps = 0;
      run_.spec.output_dir = run_.folder() / fmt::format("plain-{}-{}", dtype, merge);
      const auto plain = train_with_flip(run_.spec, GetParam().ranks, -1, Product::kForward);
      const auto expected = read_tensors(run_.spec.output_dir);
      run_.spec.guards.replay_check_steps = 2;
      run_.spec.output_dir = run_.folder() / fmt::format("checked-{}-{}", dtype, merge);
      const auto checked = train_with_flip(run_.spec, GetParam().ranks, -1, Product::kForward);
      ASSERT_EQ(checked[0].steps.size(), plain[0].steps.size());
      for (size_t i = 0; i < plain[0].steps.size(); ++i) {
        EXPECT_EQ(checked[0].steps[i].loss, plain[0].steps[i].loss) << "step " << i + 1;
        EXPECT_EQ(checked[0].steps[i].grad_norm, plain[0].steps[i].grad_norm) << "step " << i + 1;
        EXPECT_FALSE(plain[0].steps[i].replay_check_s.has_value());
        EXPECT_EQ(checked[0].steps[i].replay_check_s.has_value(), i == 1) << "step " << i + 1;
      }
      EXPECT_EQ(read_tensors(run_.spec.output_dir), expected);
      const auto lines = read_json_lines(std::filesystem::path(run_.spec.output_dir) / "metrics.jsonl");
      ASSERT_EQ(lines.size(), 3u);
      EXPECT_GT(lines[1].at("replay_check_s"), 0);
      EXPECT_FALSE(lines[2].contains("replay_check_s"));
    }
  }
}

TEST_P(ReplayCheckTest, NamesTheRankAndThePlaceOfAFlippedBit) {
  const int world_size = GetParam().ranks.world_size();
  run_.spec.guards.replay_check_steps = 2;
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const int bad_rank : {0, world_size - 1}) {
      const std::string who = world_size == 1 ? "step 2: " : fmt::format("step 2: rank {} on host", bad_rank);
      SCOPED_TRACE(fmt::format("{}, rank {}", dtype, bad_rank));
      run_.spec.precision.dtype = from_word(dtype);
      expect_error(ExitCode::kNumerics,
                   {who, "different results, first in layer 0 attention", "as they are after step 1"},
                   [&] { train_with_flip(run_.spec, GetParam().ranks, bad_rank, Product::kForward); });
      expect_error(ExitCode::kNumerics, {who, "different results, first in the gradient of lm_head.weight"},
                   [&] { train_with_flip(run_.spec, GetParam().ranks, bad_rank, Product::kWeightGradient); });
    }
  }
}

// Why the check exists: without it such a flip goes unnoticed.
TEST_P(ReplayCheckTest, WithoutItAFlippedBitGoesUnseen) {
  const auto flipped = train_with_flip(run_.spec, GetParam().ranks, 0, Product::kForward);
  const auto weights = read_tensors(run_.spec.output_dir);
  run_.spec.output_dir = run_.folder() / "sound";
  train_with_flip(run_.spec, GetParam().ranks, -1, Product::kForward);
  EXPECT_EQ(flipped[0].steps.size(), 3u);
  EXPECT_NE(read_tensors(run_.spec.output_dir), weights);
}

INSTANTIATE_TEST_SUITE_P(Cases, ReplayCheckTest,
                         testing::Values(RanksCase{{1, 1}, 0, "auto"}, RanksCase{{1, 2}, 2, "per_step"},
                                         RanksCase{{2, 1}, 3, "per_layer"}, RanksCase{{2, 1}, 0, "per_step"},
                                         RanksCase{{2, 2}, 2, "per_step"}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace tessera
