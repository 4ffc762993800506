#include "optim/optimizer_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/rng.h"
#include "optim/elementwise.h"
#include "support/momentum_sgd.h"

namespace tessera {
namespace {

std::vector<float> normal_values(int64_t count, uint64_t seed) {
  const CounterRng rng(seed, 0);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(rng.normal(static_cast<uint64_t>(i)));
  return values;
}

// A flat array with two ranges, the second without decay, and gaps before, between and after.
constexpr int64_t kCount = 1000;
const std::vector<ParameterRange> kRanges = {{3, 500, true}, {520, 400, false}};

bool in_range(int64_t i) { return (i >= 3 && i < 503) || (i >= 520 && i < 920); }

std::unique_ptr<const Optimizer> adamw() {
  return std::make_unique<const AdamW>(OptimizerSpec{.weight_decay = 0.1});
}

struct TrainingRun {
  std::vector<float> weights = normal_values(kCount, 1);
  std::vector<bf16> half_weights = std::vector<bf16>(kCount);
  std::vector<float> gradients = std::vector<float>(kCount);
  ThreadPool pool;
  OptimizerState optimizer;

  TrainingRun(DType dtype, const OptimizerSpec& options, int64_t num_threads = 2,
              std::unique_ptr<const Optimizer> other = nullptr)
      : pool(num_threads),
        optimizer(other ? std::move(other) : std::make_unique<AdamW>(options), kRanges,
                  dtype == DType::kBF16 ? TensorView(half_weights.data(), dtype, {kCount})
                                        : TensorView(weights.data(), dtype, {kCount}),
                  TensorView(gradients.data(), DType::kF32, {kCount}), pool) {
    optimizer.write_master(0, normal_values(kCount, 1));
  }
  // In place, because the optimizer holds the address.
  void set_gradients(uint64_t seed) { std::ranges::copy(normal_values(kCount, seed), gradients.begin()); }
  void step(int64_t step) {
    set_gradients(static_cast<uint64_t>(100 + step));
    optimizer.update({step, 1e-2, 0.5});
  }
  std::vector<float> masters() const {
    std::vector<float> values(kCount);
    optimizer.read_master(0, values);
    return values;
  }
};

TEST(OptimizerState, DecaysOnlyTheRangesThatAskAndLeavesGapsAlone) {
  const OptimizerSpec options{.weight_decay = 0.5};
  TrainingRun run(DType::kF32, options);
  const std::vector<float> before = run.masters();
  run.optimizer.update({1, 1e-2});  // gradients are zero: only weight decay acts
  const std::vector<float> after = run.masters();
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    const float decay = i >= 3 && i < 503 ? static_cast<float>(1 - 1e-2 * 0.5) : 1.0f;
    EXPECT_EQ(after[at], before[at] * decay) << "index " << i;
  }
}

TEST(AdamW, Bf16MastersEqualAFloat32Run) {
  const OptimizerSpec options{.weight_decay = 0.1};
  TrainingRun f32(DType::kF32, options), half(DType::kBF16, options);
  for (int64_t step = 1; step <= 50; ++step) {
    f32.step(step);
    half.step(step);
  }
  const std::vector<float> expected = f32.masters(), got = half.masters();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i])) << "index " << i;
    // The weight the model computes with is the rounded master.
    ASSERT_NEAR(to_float(half.half_weights[i]), expected[i], std::abs(expected[i]) * 0x1.0p-8)
        << "index " << i;
  }
}

TEST(OptimizerState, GradientNormCountsTheRangesOnly) {
  TrainingRun run(DType::kBF16, {});
  double sum = 0;
  run.set_gradients(9);
  for (int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!in_range(i)) {
      run.gradients[at] = 1e30f;
    } else {
      sum += static_cast<double>(run.gradients[at]) * static_cast<double>(run.gradients[at]);
    }
  }
  EXPECT_NEAR(run.optimizer.gradient_norm(), std::sqrt(sum), 1e-12 * std::sqrt(sum));
  run.gradients[5] = std::nanf("");
  EXPECT_TRUE(std::isnan(run.optimizer.gradient_norm()));
}

TEST(OptimizerState, DoesNotDependOnTheNumberOfThreads) {
  TrainingRun one(DType::kBF16, {}, 1), three(DType::kBF16, {}, 3);
  for (int64_t step = 1; step <= 3; ++step) {
    one.step(step);
    three.step(step);
  }
  EXPECT_EQ(one.masters(), three.masters());
  one.set_gradients(77);
  three.set_gradients(77);
  EXPECT_EQ(one.optimizer.gradient_norm(), three.optimizer.gradient_norm());
}

TEST(OptimizerState, ReadsAndWritesPartsOfTheMasters) {
  TrainingRun run(DType::kBF16, {});
  const std::vector<float> part = {1.0f + 0x1.0p-20f, -3e-40f, 7};
  run.optimizer.write_master(10, part);
  std::vector<float> back(3);
  run.optimizer.read_master(10, back);
  EXPECT_EQ(back, part);
  EXPECT_EQ(to_float(run.half_weights[10]), 1.0f);
  EXPECT_THROW(run.optimizer.read_master(kCount - 2, back), Error);
}

TEST(OptimizerState, GoesOnFromItsMastersAndMoments) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    TrainingRun whole(dtype, {.weight_decay = 0.1}), second(dtype, {.weight_decay = 0.1});
    for (int64_t step = 1; step <= 3; ++step) whole.step(step);
    second.optimizer.write_master(0, whole.masters());
    std::vector<float> values(kCount);
    for (size_t tensor = 0; tensor < std::size(AdamW::kStateTensors); ++tensor) {
      whole.optimizer.read(state_kind(tensor), 0, 0, values);
      second.optimizer.write(state_kind(tensor), 0, 0, values);
    }
    for (int64_t step = 4; step <= 6; ++step) {
      whole.step(step);
      second.step(step);
    }
    EXPECT_EQ(whole.masters(), second.masters()) << dtype_name(dtype);
  }
}

TEST(OptimizerState, AShardWithGradientsAndStateOfItsOwnEqualsTheWhole) {
  TrainingRun whole(DType::kBF16, {.weight_decay = 0.1});
  // Elements 100 to 299 of the first range and 600 to 649 of the second, with their states back to back.
  const std::vector<ParameterRange> ranges = {{100, 200, true, 64, 0}, {600, 50, false, 5, 200}};
  std::vector<bf16> weights(kCount);
  std::vector<float> gradients(400);
  ThreadPool pool(2);
  OptimizerState shard(adamw(), ranges, TensorView(weights.data(), DType::kBF16, {kCount}),
                       TensorView(gradients.data(), DType::kF32, {400}), pool, 250);
  const std::vector<float> start = normal_values(kCount, 1);
  for (const ParameterRange& range : ranges) {
    shard.write_master(
        range.begin, range.state_begin,
        std::span(start).subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.count)));
  }
  for (int64_t step = 1; step <= 3; ++step) {
    whole.step(step);
    for (const ParameterRange& range : ranges) {
      std::copy_n(whole.gradients.begin() + range.begin, range.count,
                  gradients.begin() + range.gradient_begin);
    }
    shard.update(0, 1, {step, 1e-2, 0.5});
    shard.update(1, 2, {step, 1e-2, 0.5});
  }
  const std::vector<float> expected = whole.masters();
  for (const ParameterRange& range : ranges) {
    std::vector<float> found(static_cast<size_t>(range.count));
    shard.read_master(range.begin, range.state_begin, found);
    for (int64_t i = 0; i < range.count; ++i) {
      EXPECT_EQ(found[static_cast<size_t>(i)], expected[static_cast<size_t>(range.begin + i)]) << i;
    }
  }
}

// Stochastic rounding depends on an element's position among all parameters, not on its owner or where its
// state is.
TEST(AdamWHalf, AShardEqualsTheWhole) {
  TrainingRun whole(DType::kBF16, {}, 2, std::make_unique<AdamWHalf>(OptimizerSpec{}));
  TrainingRun other_threads(DType::kBF16, {}, 1, std::make_unique<AdamWHalf>(OptimizerSpec{}));
  const ParameterRange range = {7, 200, true, 64, 5, 100};  // elements 100 to 299, at 7 of the owned weights
  std::vector<bf16> weights(300);
  std::vector<float> gradients(300);
  ThreadPool pool(2);
  OptimizerState shard(std::make_unique<AdamWHalf>(OptimizerSpec{}), {range},
                       TensorView(weights.data(), DType::kBF16, {300}),
                       TensorView(gradients.data(), DType::kF32, {300}), pool, 250);
  const std::vector<float> start = normal_values(kCount, 1);
  shard.write_master(range.begin, range.state_begin, std::span(start).subspan(100, 200));
  for (int64_t step = 1; step <= 3; ++step) {
    whole.step(step);
    other_threads.step(step);
    std::copy_n(whole.gradients.begin() + 100, 200, gradients.begin() + range.gradient_begin);
    shard.update({step, 1e-2, 0.5});
  }
  const std::vector<float> expected = whole.masters();
  EXPECT_EQ(other_threads.masters(), expected);
  std::vector<float> found(200);
  shard.read_master(range.begin, range.state_begin, found);
  EXPECT_EQ(found, std::vector<float>(expected.begin() + 100, expected.begin() + 300));
  EXPECT_EQ(state_bytes(AdamWHalf::kStateTensors, 1), 4);
}

// Parameters with gaps between them, in several ranges over thousands of blocks of codes, are cut at random
// multiples of 32 into the shards of several ranks: masters and moments equal those of a single rank for any
// number of threads, also if half of the steps resume from the float32 values of the state.
TEST(AdamW8Bit, ShardsAndResumedRunsEqualTheWhole) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    auto draw = [seed, at = uint64_t{0}](int64_t first, int64_t last) mutable {
      return first +
             static_cast<int64_t>(philox4x32(seed, at++, 7)[0] % static_cast<uint32_t>(last - first + 1));
    };
    std::vector<ParameterRange> parameters;
    int64_t count = 0;
    for (int64_t left = draw(1, 4); left > 0; --left) {
      const int64_t size = draw(1, left == 1 ? 80'000 : 300);
      parameters.push_back({count, size, draw(0, 1) == 1});
      count += (size + 31) / 32 * 32;
    }
    const std::vector<float> start = normal_values(count, seed);
    const auto gradients_of = [&](int64_t step) {
      std::vector<float> values = normal_values(count, 100 * seed + static_cast<uint64_t>(step));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] *= i % 9 == 4 ? 0 : std::exp2(static_cast<float>(i % 13));
      return values;
    };
    // Masters, then moments, of the elements of `ranges`, after steps (first, last].
    std::vector<std::vector<float>> whole = {start, std::vector<float>(start.size()),
                                             std::vector<float>(start.size())};
    std::vector<std::vector<float>> sharded = whole;
    const auto run = [&](std::vector<std::vector<float>>& values, const std::vector<ParameterRange>& ranges,
                         int64_t num_threads, int64_t first, int64_t last) {
      std::vector<bf16> weights(start.size());
      std::vector<float> gradients(start.size());
      ThreadPool pool(num_threads);
      int64_t num_state = 0;
      for (const ParameterRange& range : ranges) num_state = range.state_begin + range.count;
      OptimizerState state(std::make_unique<AdamW8Bit>(OptimizerSpec{.weight_decay = 0.1}), ranges,
                           TensorView(weights.data(), DType::kBF16, {count}),
                           TensorView(gradients.data(), DType::kF32, {count}), pool, num_state);
      const auto part = [&](const ParameterRange& range, size_t kind) {
        return std::span(values[kind])
            .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.count));
      };
      for (const ParameterRange& range : ranges) {
        for (size_t kind = 0; kind < 3; ++kind)
          state.write(StateKind{kind}, range.begin, range.state_begin, part(range, kind));
      }
      for (int64_t step = first + 1; step <= last; ++step) {
        std::ranges::copy(gradients_of(step), gradients.begin());
        state.update({step, 1e-2, 0.5});
      }
      for (const ParameterRange& range : ranges) {
        for (size_t kind = 0; kind < 3; ++kind)
          state.read(StateKind{kind}, range.begin, range.state_begin, part(range, kind));
      }
    };
    run(whole, parameters, 3, 0, 6);
    const int64_t num_ranks = draw(1, 4), resumed_after = draw(1, 5);
    for (const auto& [first, last] :
         {std::pair(int64_t{0}, resumed_after), std::pair(resumed_after, int64_t{6})}) {
      int64_t from = 0;
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const int64_t to = rank + 1 == num_ranks ? count : std::min(count, from + draw(0, count / 32) * 32);
        std::vector<ParameterRange> ranges;
        for (const ParameterRange& parameter : parameters) {
          const int64_t begin = std::max(from, parameter.begin);
          const int64_t end = std::min(to, parameter.begin + parameter.count);
          if (begin < end)
            ranges.push_back({begin, end - begin, parameter.weight_decay, begin, begin - from, begin});
        }
        if (!ranges.empty()) run(sharded, ranges, 1 + rank % 2, first, last);
        from = to;
      }
    }
    EXPECT_EQ(sharded[0], whole[0]);
    EXPECT_EQ(sharded[1], whole[1]);
    EXPECT_EQ(sharded[2], whole[2]);
  }
  EXPECT_EQ(state_bytes(AdamW8Bit::kStateTensors, 3200), 2 * 3300);
}

// A quadratic with noise in its gradients, whose curvatures differ by a factor of a thousand.
TEST(AdamW8Bit, ComesAsCloseToTheMinimumAsFloat32) {
  constexpr int64_t kSize = 4096;
  double losses[2];
  for (const bool is_coded : {false, true}) {
    std::vector<float> weights = normal_values(kSize, 3), gradients(kSize);
    ThreadPool pool(2);
    std::unique_ptr<const Optimizer> optimizer = std::make_unique<AdamW>(OptimizerSpec{});
    if (is_coded) optimizer = std::make_unique<AdamW8Bit>(OptimizerSpec{});
    OptimizerState state(std::move(optimizer), {{0, kSize, true}},
                         TensorView(weights.data(), DType::kF32, {kSize}),
                         TensorView(gradients.data(), DType::kF32, {kSize}), pool);
    const auto curvature = [](size_t i) { return std::exp2(-static_cast<float>(i % 11)); };
    for (int64_t step = 1; step <= 500; ++step) {
      const std::vector<float> noise = normal_values(kSize, 1000 + static_cast<uint64_t>(step));
      for (size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = curvature(i) * (weights[i] + 0.3f * noise[i]);
      state.update({step, 1e-2 * (1 - static_cast<double>(step) / 501)});
    }
    double& loss = losses[is_coded ? 1 : 0];
    loss = 0;
    for (size_t i = 0; i < weights.size(); ++i)
      loss += static_cast<double>(curvature(i) * weights[i] * weights[i]);
  }
  EXPECT_LT(losses[1], 1.1 * losses[0]);
}

TEST(Lion, MovesEveryWeightByTheLearningRateAndDecaysRanges) {
  TrainingRun run(DType::kBF16, {}, 2, std::make_unique<Lion>(OptimizerSpec{.weight_decay = 0.5}));
  const std::vector<float> before = run.masters();
  run.step(1);
  const std::vector<float> after = run.masters();
  for (size_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<int64_t>(i);
    const float decay = at >= 3 && at < 503 ? static_cast<float>(1 - 1e-2 * 0.5) : 1.0f;
    const float change = in_range(at) ? std::copysign(1e-2f, run.gradients[i]) : 0;
    EXPECT_NEAR(after[i], before[i] * (in_range(at) ? decay : 1) - change, 1e-6) << "index " << i;
  }
}

TEST(OptimizerState, Bf16GradientsCountAsTheirValues) {
  constexpr int64_t kMany = (1 << 20) + 1000;  // more than are widened at a time
  const std::vector<float> start = normal_values(kMany, 1);
  std::vector<bf16> half_gradients;
  std::vector<float> gradients;
  for (const float value : normal_values(kMany, 2)) {
    half_gradients.push_back(to_bf16(value));
    gradients.push_back(to_float(half_gradients.back()));
  }
  ThreadPool pool(2);
  std::vector<float> weights(kMany), half_weights(kMany);
  const std::vector<ParameterRange> ranges = {{3, kMany - 10, true}};
  const auto run = [&](std::vector<float>& to, ConstTensorView with) {
    OptimizerState optimizer(adamw(), ranges, TensorView(to.data(), DType::kF32, {kMany}), with, pool);
    optimizer.write_master(0, start);
    optimizer.update({1, 1e-2, 0.5});
    return optimizer.gradient_norm();
  };
  const double norm = run(weights, TensorView(gradients.data(), DType::kF32, {kMany}));
  const double half_norm = run(half_weights, TensorView(half_gradients.data(), DType::kBF16, {kMany}));
  EXPECT_EQ(weights, half_weights);
  EXPECT_NEAR(norm, half_norm, 1e-12 * norm);
}

// An optimizer with other state than AdamW's: one tensor, in BF16.
TEST(OptimizerState, KeepsWhatAnyOptimizerNeeds) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(dtype_name(dtype));
    TrainingRun run(dtype, {}, 2, std::make_unique<MomentumSgd>());
    std::vector<float> expected = run.masters(), momentum(kCount);
    for (int64_t step = 1; step <= 3; ++step) {
      run.step(step);
      for (size_t i = 0; i < kCount; ++i) {
        if (!in_range(static_cast<int64_t>(i))) continue;
        momentum[i] = to_float(to_bf16(0.9f * momentum[i] + 0.5f * run.gradients[i]));
        expected[i] -= 1e-2f * momentum[i];
      }
    }
    std::vector<float> kept(kCount);
    run.optimizer.read(state_kind(0), 0, 0, kept);
    const std::vector<float> masters = run.masters();
    for (size_t i = 0; i < kCount; ++i) {
      // The momentum may be rounded the other way.
      EXPECT_NEAR(kept[i], momentum[i], 0x1p-7 * std::abs(momentum[i])) << i;
      EXPECT_NEAR(masters[i], expected[i], 1e-3) << i;
    }
    TrainingRun other(dtype, {}, 2, std::make_unique<MomentumSgd>());
    other.optimizer.write_master(0, masters);
    other.optimizer.write(state_kind(0), 0, 0, kept);
    run.step(4);
    other.step(4);
    EXPECT_EQ(run.masters(), other.masters());
  }
  EXPECT_EQ(optimizer_state_bytes(MomentumSgd::kStateTensors, 1 << 20, DType::kBF16), (4 << 20) + 16 * 8);
}

TEST(OptimizerState, StateIsWhatIsAllocated) {
  // m, v, the remainder, and the partial sums of the norm (8 bytes per block).
  EXPECT_EQ(optimizer_state_bytes(AdamW::kStateTensors, 1 << 20, DType::kF32), (8 << 20) + 16 * 8);
  EXPECT_EQ(optimizer_state_bytes(AdamW::kStateTensors, 1 << 20, DType::kBF16), (10 << 20) + 16 * 8);
}

TEST(OptimizerState, RefusesRangesThatOverlapOrOverrun) {
  std::vector<float> data(10);
  ThreadPool pool(1);
  const TensorView view(data.data(), DType::kF32, {10});
  EXPECT_THROW(OptimizerState(adamw(), {{0, 5, true}, {4, 2, true}}, view, view, pool), Error);
  EXPECT_THROW(OptimizerState(adamw(), {{8, 3, true}}, view, view, pool), Error);
}

}  // namespace
}  // namespace tessera
