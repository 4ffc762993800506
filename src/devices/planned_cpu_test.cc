#include "devices/planned_cpu.h"

#include <gtest/gtest.h>

#include "kernels/gemm/gemm.h"

namespace tessera {
namespace {

TEST(PlannedCpu, PacksWeightsAsAProcessorWithAmxDoes) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = planned_cpu_ops(/*has_amx=*/true)(pool);
  EXPECT_EQ(ops->packed_weight_bytes(64, 4096, DType::kBF16), 64 * 4096 * 2);
  EXPECT_EQ(ops->packed_weight_bytes(33, 70, DType::kBF16), 64 * 96 * 2);
  EXPECT_EQ(ops->packed_weight_bytes(64, 64, DType::kF32), 0);
  if (packed_weight_bytes(32, 32, DType::kBF16) == 0) GTEST_SKIP() << "no packed forms here to compare with";
  for (const int64_t N : {1, 31, 512, 1000}) {
    for (const int64_t K : {1, 33, 511, 4096}) {
      EXPECT_EQ(ops->packed_weight_bytes(N, K, DType::kBF16), packed_weight_bytes(N, K, DType::kBF16));
    }
  }
}

TEST(PlannedCpu, PacksNothingWithoutAmx) {
  ThreadPool pool(1);
  EXPECT_EQ(planned_cpu_ops(/*has_amx=*/false)(pool)->packed_weight_bytes(64, 64, DType::kBF16), 0);
}

}  // namespace
}  // namespace tessera
