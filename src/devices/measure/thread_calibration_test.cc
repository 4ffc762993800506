#include "devices/measure/thread_calibration.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/gemm/gemm_impl.h"

namespace tessera {
namespace {

TEST(ThreadCalibration, NeitherALuckyRoundNorABusyMachineIsAReason) {
  const auto threads = [](const std::vector<double>& one, const std::vector<double>& two) {
    return judge_rounds(16, one, 32, two).num_threads();
  };
  EXPECT_EQ(threads({10, 10, 10}, {12, 11.5, 12}), 32);
  EXPECT_EQ(threads({10, 10, 10}, {10.5, 10.9, 10.5}), 16) << "too little";
  EXPECT_EQ(threads({10, 10, 10}, {9, 9, 30}), 16) << "one lucky round";
  EXPECT_EQ(threads({1, 1, 10}, {10, 10, 10}), 16) << "another program had the processors";
  EXPECT_EQ(threads({10, 10, 10}, {5, 5, 5}), 16);
}

// Treats two processors as one core's: this tests that it measures, not what the result is.
TEST(ThreadCalibration, MeasuresOnlyWhereCoresHaveTwoProcessorsAndTheirTime) {
  if (usable_cpus().size() < 2) GTEST_SKIP() << "one processor is usable";
  CpuLimits limits = {{usable_cpus()[0], usable_cpus()[1]}, {}};
  EXPECT_FALSE(calibrate_threads(limits).has_value()) << "two cores";
  limits.cores = {limits.cpus};
  limits.quota = 1.5;
  EXPECT_FALSE(calibrate_threads(limits).has_value()) << "no time for both";
  limits.quota = 2;
  const auto measured = calibrate_threads(limits);
  ASSERT_EQ(measured.has_value(), gemm_table().chosen_implementation().isa != Isa::kRef);
  if (!measured) return;
  EXPECT_EQ(measured->one_per_core.num_threads, 1);
  EXPECT_EQ(measured->two_per_core.num_threads, 2);
  EXPECT_GT(measured->one_per_core.tflops, 0);
  EXPECT_GT(measured->two_per_core.tflops, 0);
  EXPECT_GT(measured->speedup, 0);
}

}  // namespace
}  // namespace tessera
