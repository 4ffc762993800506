// A training step works in memory reserved before the first step, and its threads never wait for a lock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "devices/measure/training_peak.h"
#include "resource_counter.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

constexpr int64_t kNumSteps = 6;

// Measures the resources of every step: the trainer calls stop_signal() right before a step and during it,
// and on_step() right after.
class StepMeter : public RecordingObserver {
 public:
  int before_step() {
    if (!std::exchange(in_step_, true)) begin_ = resource_counts();
    return 0;
  }
  void on_step(const StepMetrics& metrics) override {
    const ResourceCounts end = resource_counts();
    in_step_ = false;
    taken_[static_cast<size_t>(metrics.step - 1)] = {end.allocations - begin_.allocations,
                                                     end.locks - begin_.locks};
  }
  ResourceCounts taken_in(int64_t step) const { return taken_[static_cast<size_t>(step - 1)]; }

 private:
  bool in_step_ = false;
  ResourceCounts begin_;
  std::array<ResourceCounts, kNumSteps> taken_;
};

// Two layers; 24 rows of 64 tokens are one epoch of six steps of two micro-batches of two rows.
class StepResources : public testing::Test {
 protected:
  StepResources() {
    run_.spec.precision.dtype = DType::kBF16;
    run_.spec.data.shuffle = true;  // the order of an epoch's rows is drawn once, in its first step
    run_.spec.batch.max_steps = kNumSteps;
    run_.spec.clipping.max_norm = 0.1;
    run_.spec.data.dataset = {run_.folder() / "rows.safetensors"};
    write_token_rows(run_.folder() / "rows.safetensors",
                     random_rows(std::vector<int64_t>(24, 64), tiny_config().vocab_size, 3));
  }

  StepMeter train() {
    ThreadPool pool(3);
    StepMeter meter;
    Trainer trainer(run_.spec, pool, meter);
    trainer.run([&] { return meter.before_step(); });
    return meter;
  }

  // oneDNN, which multiplies in float32 and on processors without AMX, allocates small objects and takes a
  // lock in every call: it is exempt.
  static bool multiplies_with_onednn(const StepMeter& meter) {
    return meter.plan.operations.find("onednn") != std::string::npos;
  }

  TinyRun run_;
};

TEST_F(StepResources, FromTheSecondStepOnNeitherHeapNorLock) {
  if (!counts_resources()) GTEST_SKIP() << "a sanitizer takes the place of the counters";
  for (const char* merge : {"never", "always"}) {
    for (const bool checkpointing : {false, true}) {
      SCOPED_TRACE(fmt::format("merge_micro_batches {}, gradient_checkpointing {}", merge, checkpointing));
      run_.spec.placement.merge_micro_batches = from_word(merge);
      run_.spec.placement.gradient_checkpointing = checkpointing;
      const StepMeter meter = train();
      if (multiplies_with_onednn(meter)) GTEST_SKIP() << "oneDNN is excepted: " << meter.plan.operations;
      EXPECT_GT(meter.taken_in(1).allocations, 0) << "the first step fills what later ones reuse";
      for (int64_t step = 2; step <= kNumSteps; ++step) {
        EXPECT_EQ(meter.taken_in(step).allocations, 0) << "step " << step;
        EXPECT_EQ(meter.taken_in(step).locks, 0) << "step " << step;
      }
    }
  }
}

TEST_F(StepResources, MeasuringThePeakAgainTakesNeitherHeapNorLock) {
  if (!counts_resources()) GTEST_SKIP() << "a sanitizer takes the place of the counters";
  ThreadPool pool(3);
  TrainingPeak peak(pool, DType::kBF16);
  if (!peak.best()) GTEST_SKIP() << "no instruction set to measure a peak of";
  const ResourceCounts before = resource_counts();
  for (int i = 0; i < 4; ++i) peak.measure_again();  // each instruction set that is close to the best
  const ResourceCounts after = resource_counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.locks, before.locks);
}

TEST_F(StepResources, AreCounted) {
  if (!counts_resources()) GTEST_SKIP() << "a sanitizer takes the place of the counters";
  const ResourceCounts before = resource_counts();
  std::mutex mutex;
  { const std::lock_guard lock(mutex); }
  void* volatile from_new = ::operator new(1);  // volatile: allocations of unused memory may be elided
  void* volatile aligned = std::aligned_alloc(64, 64);
  const ResourceCounts after = resource_counts();
  ::operator delete(from_new);
  std::free(aligned);
  EXPECT_EQ(after.locks - before.locks, 1);
  EXPECT_EQ(after.allocations - before.allocations, 2);
}

}  // namespace
}  // namespace tessera
