#include "devices/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/clock.h"
#include "devices/cuda/cuda_ops.h"

namespace tessera {
namespace {

TEST(CudaDevice, CopiesAndIsZeroAtFirst) {
  Device* device = nullptr;
  try {
    device = &cuda_device();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const DeviceBuffer buffer = device->allocate(3 * 4);
  std::vector<float> values = {1, 2, 3};
  const TensorView there = buffer.view(DType::kF32, {3}), here(values.data(), DType::kF32, {3});
  copy(there, here);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 0}));
  values = {4, 5, 6};
  copy(here.rows(0, 2), there.rows(1, 3));
  copy(there, here);
  EXPECT_EQ(values, (std::vector<float>{0, 4, 5}));
  EXPECT_GT(device->own_memory()->free_bytes, 0);
  EXPECT_THROW(device->allocate(int64_t{1} << 50), Error);
  const DeviceBuffer after = device->allocate(64);  // the failure is over
  EXPECT_NE(after.address(), nullptr);
}

TEST(CudaClock, AddsUpWhatTheCardTakesNotTheCalls) {
  std::unique_ptr<Ops> ops;
  try {
    ops = make_cuda_ops();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  constexpr int64_t kElements = 1 << 28;  // 1 GiB: at least 0.1 ms on any card
  constexpr int kCalls = 80;              // more than wait to be added
  const DeviceBuffer buffer = ops->device().allocate(kElements * 4);
  const TensorView large = buffer.view(DType::kF32, {kElements}), small = large.rows(0, 64);
  const std::unique_ptr<DeviceClock> clock = ops->device().make_clock();
  double of_large = 0, of_small = 0, discarded = 0;
  const auto ask = [&](TensorView view, double* sum) {
    clock->begin();
    ops->zero(view);
    clock->end(sum);
  };
  ops->device().synchronize();
  const Stopwatch time;
  for (int i = 0; i < kCalls; ++i) {
    ask(large, &of_large);
    ask(small, &of_small);
  }
  const double asked_s = time.seconds();
  clock->finish();
  const double whole_s = time.seconds();
  EXPECT_LT(asked_s, whole_s / 2) << "asking does not wait";
  EXPECT_GT(of_large, kCalls * 1e-4);
  EXPECT_LT(of_small, of_large / 4);
  EXPECT_NEAR(of_large + of_small, whole_s, whole_s / 5);
  ask(large, &discarded);
  clock->discard();
  ask(small, &of_small);
  clock->finish();
  EXPECT_EQ(discarded, 0);
}

}  // namespace
}  // namespace tessera
