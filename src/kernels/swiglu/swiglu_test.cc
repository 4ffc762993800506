#include <gtest/gtest.h>

#include "kernels/swiglu/swiglu_expected.h"
#include "kernels/swiglu/swiglu_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kWidths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257};

TEST(Swiglu, ForwardMatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : swiglu_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t F : kWidths) {
        GuardedTensor gate_up(dtype, {5, 2 * F}), h(dtype, {5, F});
        gate_up.fill_normal(static_cast<uint64_t>(F), 4);
        implementation.kernels.forward(gate_up.view(), h.view(), pool);
        expect_within(h, expected_swiglu(gate_up.values(), F),
                      fmt::format("{} {} F {}", describe(implementation), dtype_name(dtype), F));
      }
    }
  }
}

// Fourth-order central differences, h = 1e-4: an error of h^4 / 30 times a fifth derivative below 2, plus
// 2^-52 |silu| / h.
TEST(Swiglu, GradientFormulaAgreesWithDifferences) {
  const auto silu = [](double x) { return expected_swiglu(std::vector<double>{x, 1}, 1)[0].value; };
  const double h = 1e-4;
  for (const double x : {-30.0, -7.0, -2.4, -1.28, -0.5, 0.0, 0.3, 1.0, 4.0, 25.0}) {
    const double slope = (8 * (silu(x + h) - silu(x - h)) - (silu(x + 2 * h) - silu(x - 2 * h))) / (12 * h);
    const auto gradient = expected_swiglu_backward(std::vector<double>{3}, std::vector<double>{x, 0.5}, 1);
    EXPECT_NEAR(gradient[0].value, 3 * 0.5 * slope, 1e-15 + 1e-11 * std::abs(silu(x))) << "gate " << x;
    EXPECT_DOUBLE_EQ(gradient[1].value, 3 * silu(x)) << "gate " << x;
  }
}

TEST(Swiglu, BackwardMatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : swiglu_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t F : kWidths) {
        GuardedTensor gate_up(dtype, {5, 2 * F}), dh(dtype, {5, F}), dgate_up(dtype, {5, 2 * F});
        gate_up.fill_normal(static_cast<uint64_t>(F), 3);
        dh.fill_normal(static_cast<uint64_t>(F) + 1000);
        const std::vector<Expected> expected = expected_swiglu_backward(dh.values(), gate_up.values(), F);
        const std::string context = fmt::format("{} {} F {}", describe(implementation), dtype_name(dtype), F);
        GuardedTensor h(dtype, {5, F}), forward_h(dtype, {5, F});
        implementation.kernels.forward(gate_up.view(), forward_h.view(), pool);
        implementation.kernels.backward(dh.view(), gate_up.view(), dgate_up.view(), h.view(), pool);
        expect_within(dgate_up, expected, context);
        EXPECT_TRUE(h.guards_intact() && h.bits() == forward_h.bits()) << context << ": h differs";
        implementation.kernels.backward(dh.view(), gate_up.view(), gate_up.view(), dh.view(), pool);
        EXPECT_TRUE(gate_up.bits() == dgate_up.bits()) << context << ": in place differs";
        EXPECT_TRUE(dh.guards_intact() && dh.bits() == forward_h.bits()) << context << ": h in place differs";
      }
    }
  }
}

TEST(Swiglu, ExtremeGatesGiveTheLimits) {
  ThreadPool pool(1);
  // Below -87.3 the sigmoid is subnormal and counts as zero.
  const float gates[] = {0, -0.0f, 100, 1e4f, 3e38f, -50, -87, -100, -1e4f, -3e38f};
  const int64_t F = std::ssize(gates);
  for (const auto& implementation : swiglu_table().usable()) {
    GuardedTensor gate_up(DType::kF32, {1, 2 * F}), h(DType::kF32, {1, F}), dh(DType::kF32, {1, F});
    GuardedTensor dgate_up(DType::kF32, {1, 2 * F});
    gate_up.fill(1);
    dh.fill(1);
    for (int64_t i = 0; i < F; ++i) gate_up.set(i, gates[i]);
    implementation.kernels.forward(gate_up.view(), h.view(), pool);
    expect_within(h, expected_swiglu(gate_up.values(), F), describe(implementation));
    implementation.kernels.backward(dh.view(), gate_up.view(), dgate_up.view(), h.view(), pool);
    for (int64_t i = 0; i < F; ++i) {
      const double limit = gates[i] > 50 ? 1 : gates[i] < -40 ? 0 : 0.5;
      EXPECT_NEAR(dgate_up[i], limit, 1e-15) << describe(implementation) << " gate " << gates[i];
    }
  }
}

TEST(Swiglu, NotANumberReachesTheOutput) {
  ThreadPool pool(1);
  for (const auto& implementation : swiglu_table().usable()) {
    GuardedTensor gate_up(DType::kF32, {1, 2}), h(DType::kF32, {1, 1});
    gate_up.set(0, std::nanf(""));
    gate_up.set(1, 1);
    implementation.kernels.forward(gate_up.view(), h.view(), pool);
    EXPECT_TRUE(std::isnan(h[0])) << describe(implementation);
  }
}

TEST(Swiglu, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : swiglu_table().usable()) {
    GuardedTensor gate_up(DType::kBF16, {333, 2 * 70}), dh(DType::kBF16, {333, 70});
    gate_up.fill_normal(5);
    dh.fill_normal(6);
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> outputs;
          outputs.emplace_back(DType::kBF16, Shape{333, 70});
          outputs.emplace_back(DType::kBF16, Shape{333, 2 * 70});
          implementation.kernels.forward(gate_up.view(), outputs[0].view(), pool);
          outputs.emplace_back(DType::kBF16, Shape{333, 70});
          implementation.kernels.backward(dh.view(), gate_up.view(), outputs[1].view(), outputs[2].view(),
                                          pool);
          return outputs;
        },
        describe(implementation));
  }
}

TEST(Swiglu, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  GuardedTensor gate_up(DType::kF32, {2, 7}), h(DType::kF32, {2, 3});
  EXPECT_THROW(swiglu(gate_up.view(), h.view(), pool), Error);
}

}  // namespace
}  // namespace tessera
