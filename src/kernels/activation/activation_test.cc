#include <gtest/gtest.h>

#include "kernels/activation/activation_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr Activation kFunctions[] = {Activation::kRelu, Activation::kGelu, Activation::kGatedGelu,
                                     Activation::kGatedGeluTanh};
constexpr int64_t kWidths[] = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 65, 257};

const ActivationKernels& reference() {
  static const ActivationKernels kernels = activation_ref().front().kernels;
  return kernels;
}

struct ActivationResult {
  GuardedTensor h, dpre, h_again;
};

ActivationResult run(const ActivationKernels& kernels, Activation which, const GuardedTensor& pre,
                     const GuardedTensor& dh, ThreadPool& pool) {
  ActivationResult result = {{dh.dtype(), dh.shape()}, {pre.dtype(), pre.shape()}, {dh.dtype(), dh.shape()}};
  kernels.forward(which, pre.view(), result.h.view(), pool);
  kernels.backward(which, dh.view(), pre.view(), result.dpre.view(), result.h_again.view(), pool);
  return result;
}

// The formulas of activation.h in Python's float64.
TEST(ActivationReference, HasTheValuesOfTheFormulas) {
  ThreadPool pool(1);
  const float xs[] = {-3, -1, -0.5f, 0, 0.5f, 1, 3};
  const double gelu[] = {-0.003637392081773019, -0.15880800939172324, -0.15428599017485609, 0,
                         0.34571400982514394,   0.8411919906082768,   2.9963626079182273};
  const double slope[] = {-0.011584166630969726, -0.08296408384578255, 0.1326300964653577, 0.5,
                          0.8673699035346424,    1.0829640838457826,   1.011584166630969};
  const double gelu_exact[] = {-0.004049694094890287, -0.15865525393145707, -0.15426876936299344, 0.0,
                               0.34573123063700656,   0.8413447460685429,   2.99595030590511};
  const double slope_exact[] = {-0.011945647204183927, -0.08331547058768629, 0.13250487534383712, 0.5,
                                0.8674951246561629,    1.0833154705876864,   1.011945647204184};
  for (size_t i = 0; i < std::size(xs); ++i) {
    GuardedTensor pre(DType::kF32, {1, 2}), dh(DType::kF32, {1, 1});
    pre.set(0, xs[i]);
    pre.set(1, 2);
    dh.set(0, 3);
    const ActivationResult result = run(reference(), Activation::kGatedGeluTanh, pre, dh, pool);
    EXPECT_NEAR(result.h[0], 2 * gelu[i], 1e-6) << xs[i];
    EXPECT_NEAR(result.dpre[0], 6 * slope[i], 2e-6) << xs[i];
    EXPECT_NEAR(result.dpre[1], 3 * gelu[i], 1e-6) << xs[i];
    const ActivationResult exact = run(reference(), Activation::kGatedGelu, pre, dh, pool);
    EXPECT_NEAR(exact.h[0], 2 * gelu_exact[i], 1e-6) << xs[i];
    EXPECT_NEAR(exact.dpre[0], 6 * slope_exact[i], 2e-6) << xs[i];
    GuardedTensor alone(DType::kF32, {1, 1});
    alone.set(0, xs[i]);
    const ActivationResult relu = run(reference(), Activation::kRelu, alone, dh, pool);
    EXPECT_EQ(relu.h[0], std::max(0.0f, xs[i]));
    EXPECT_EQ(relu.dpre[0], xs[i] > 0 ? 3 : 0);
  }
}

TEST(ActivationKernel, MatchesTheReferenceInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : activation_table().usable()) {
    for (const Activation which : kFunctions) {
      for (const DType dtype : kActivationTypes) {
        for (const int64_t F : kWidths) {
          GuardedTensor pre(dtype, {5, is_gated(which) ? 2 * F : F}), dh(dtype, {5, F});
          pre.fill_normal(static_cast<uint64_t>(F), 3);
          dh.fill_normal(static_cast<uint64_t>(F) + 1000);
          pre.set(0, 300);
          pre.set(pre.num_elements() - 1, -1e4f);
          const ActivationResult expected = run(reference(), which, pre, dh, pool);
          const ActivationResult found = run(implementation.kernels, which, pre, dh, pool);
          const std::string context = fmt::format("{} {} {} F {}", describe(implementation),
                                                  static_cast<int>(which), dtype_name(dtype), F);
          // One rounding to bf16; about 12 roundings in float32, of terms that cancel in the slope.
          const double share = dtype == DType::kBF16 ? 0x1.0p-8 : 0x1.0p-20;
          for (int64_t i = 0; i < dh.num_elements(); ++i)
            ASSERT_NEAR(found.h[i], expected.h[i], share * std::abs(expected.h[i]) + 1e-7)
                << context << " " << i;
          for (int64_t i = 0; i < pre.num_elements(); ++i)
            ASSERT_NEAR(found.dpre[i], expected.dpre[i], share * (std::abs(expected.dpre[i]) + 1) + 1e-7)
                << context << " " << i;
          EXPECT_TRUE(found.h.bits() == found.h_again.bits()) << context << ": h differs";
          GuardedTensor pre_in_place = pre, dh_in_place = dh;
          implementation.kernels.backward(which, dh_in_place.view(), pre_in_place.view(), pre_in_place.view(),
                                          dh_in_place.view(), pool);
          EXPECT_TRUE(pre_in_place.guards_intact() && pre_in_place.bits() == found.dpre.bits()) << context;
          EXPECT_TRUE(dh_in_place.guards_intact() && dh_in_place.bits() == found.h.bits()) << context;
        }
      }
    }
  }
}

TEST(ActivationKernel, NotANumberReachesTheOutput) {
  ThreadPool pool(1);
  for (const auto& implementation : activation_table().usable()) {
    for (const Activation which : kFunctions) {
      GuardedTensor pre(DType::kF32, {1, is_gated(which) ? 2 : 1}), h(DType::kF32, {1, 1});
      pre.fill(1);
      pre.set(0, std::nanf(""));
      implementation.kernels.forward(which, pre.view(), h.view(), pool);
      EXPECT_TRUE(std::isnan(h[0])) << describe(implementation);
    }
  }
}

TEST(ActivationKernel, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  GuardedTensor pre(DType::kF32, {2, 6}), h(DType::kF32, {2, 3});
  EXPECT_NO_THROW(activation(Activation::kGatedGeluTanh, pre.view(), h.view(), pool));
  EXPECT_THROW(activation(Activation::kRelu, pre.view(), h.view(), pool), Error);
  EXPECT_THROW(activation(Activation::kGatedSilu, pre.view(), h.view(), pool), Error);
}

}  // namespace
}  // namespace tessera
