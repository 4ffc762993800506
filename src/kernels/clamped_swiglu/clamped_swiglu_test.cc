#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/clamped_swiglu/clamped_swiglu_impl.h"
#include "kernels/expected.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kWidths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257};
// Close enough that a quarter of the values drawn below are cut.
constexpr ClampedSwiglu kClamp = {.alpha = 1.702f, .limit = 3};

struct Pair {
  double gate, up;

  double g() const { return std::min(gate, double{kClamp.limit}); }
  double u() const { return std::clamp(up, -double{kClamp.limit}, double{kClamp.limit}); }
  double s() const { return 1 / (1 + std::exp(-double{kClamp.alpha} * g())); }
  double h() const { return (u() + 1) * g() * s(); }
};

Pair pair_of(const GuardedTensor& pre, int64_t i) { return {pre[2 * i], pre[2 * i + 1]}; }

// Roundings: the exponential (2) of an argument with one of its own, the sum, the quotient (2) and products;
// u + 1 may cancel.
constexpr double kRoundings = 12;

std::vector<Expected> expected_h(const GuardedTensor& pre) {
  std::vector<Expected> h;
  for (int64_t i = 0; i < pre.num_elements() / 2; ++i) {
    const Pair x = pair_of(pre, i);
    const double size = (std::abs(x.u()) + 1) * std::abs(x.g()) * x.s() * (1 + std::abs(x.g()));
    h.push_back({x.h(), kRoundings * kFloatEps * size});
  }
  return h;
}

std::vector<Expected> expected_dpre(const GuardedTensor& dh, const GuardedTensor& pre) {
  std::vector<Expected> dpre;
  for (int64_t i = 0; i < dh.num_elements(); ++i) {
    const Pair x = pair_of(pre, i);
    const double rise = double{kClamp.alpha} * x.g() * (1 - x.s());
    const double gate_size = std::abs(dh[i]) * (std::abs(x.u()) + 1) * x.s() * (1 + std::abs(rise));
    const double dgate = x.gate > kClamp.limit ? 0 : dh[i] * (x.u() + 1) * x.s() * (1 + rise);
    const double dup = std::abs(x.up) > kClamp.limit ? 0 : dh[i] * x.g() * x.s();
    dpre.push_back({dgate, 2 * kRoundings * kFloatEps * gate_size * (1 + std::abs(x.g()))});
    dpre.push_back({dup, kRoundings * kFloatEps * std::abs(dh[i] * x.g() * x.s()) * (1 + std::abs(x.g()))});
  }
  return dpre;
}

TEST(ClampedSwiglu, MatchesTheFormulasInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : clamped_swiglu_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t F : kWidths) {
        GuardedTensor pre(dtype, {5, 2 * F}), h(dtype, {5, F}), dh(dtype, {5, F}), again(dtype, {5, F}),
            dpre(dtype, {5, 2 * F});
        pre.fill_normal(static_cast<uint64_t>(F), 3);
        dh.fill_normal(static_cast<uint64_t>(F) + 1000);
        const std::string context = fmt::format("{} {} F {}", describe(implementation), dtype_name(dtype), F);
        implementation.kernels.forward(pre.view(), kClamp, h.view(), pool);
        expect_within(h, expected_h(pre), context);
        const std::vector<Expected> expected = expected_dpre(dh, pre);
        implementation.kernels.backward(dh.view(), pre.view(), kClamp, dpre.view(), again.view(), pool);
        expect_within(dpre, expected, context);
        EXPECT_TRUE(again.guards_intact() && again.bits() == h.bits()) << context << ": h differs";
        implementation.kernels.backward(dh.view(), pre.view(), kClamp, pre.view(), dh.view(), pool);
        EXPECT_TRUE(pre.guards_intact() && pre.bits() == dpre.bits()) << context << ": in place differs";
        EXPECT_TRUE(dh.guards_intact() && dh.bits() == h.bits()) << context << ": h in place differs";
      }
    }
  }
}

// Central differences of the reference, away from the limits; the step's square times a third derivative
// below 10, and the rounding of float32 results.
TEST(ClampedSwiglu, GradientsAgreeWithDifferences) {
  ThreadPool pool(1);
  const ClampedSwigluKernels reference = clamped_swiglu_ref().front().kernels;
  const float step = 0x1.0p-7f;
  const auto value = [&](float gate, float up) {
    GuardedTensor pre(DType::kF32, {1, 2}), h(DType::kF32, {1, 1});
    pre.set(0, gate);
    pre.set(1, up);
    reference.forward(pre.view(), kClamp, h.view(), pool);
    return h[0];
  };
  for (const float gate : {-20.0f, -2.0f, -0.5f, 0.0f, 1.5f, 2.5f, 3.5f, 50.0f}) {
    for (const float up : {-4.0f, -1.0f, 0.0f, 2.0f, 3.25f}) {
      GuardedTensor pre(DType::kF32, {1, 2}), dpre(DType::kF32, {1, 2}), dh(DType::kF32, {1, 1}),
          h(DType::kF32, {1, 1});
      pre.set(0, gate);
      pre.set(1, up);
      dh.set(0, 1);
      reference.backward(dh.view(), pre.view(), kClamp, dpre.view(), h.view(), pool);
      const double bound = 10 * step * step;
      EXPECT_NEAR(dpre[0], (value(gate + step, up) - value(gate - step, up)) / (2 * step), bound)
          << gate << " " << up;
      EXPECT_NEAR(dpre[1], (value(gate, up + step) - value(gate, up - step)) / (2 * step), bound)
          << gate << " " << up;
    }
  }
}

TEST(ClampedSwiglu, ExtremesStayFiniteAndNotANumberStays) {
  ThreadPool pool(1);
  const float values[] = {0, 3, -3, 3e38f, -3e38f, 100, -100};
  for (const auto& implementation : clamped_swiglu_table().usable()) {
    GuardedTensor pre(DType::kF32, {1, 98}), h(DType::kF32, {1, 49}), dpre(DType::kF32, {1, 98}),
        dh(DType::kF32, {1, 49});
    dh.fill(1);
    for (int64_t i = 0; i < 49; ++i) {
      pre.set(2 * i, values[i / 7]);
      pre.set(2 * i + 1, values[i % 7]);
    }
    implementation.kernels.forward(pre.view(), kClamp, h.view(), pool);
    implementation.kernels.backward(dh.view(), pre.view(), kClamp, dpre.view(), dh.view(), pool);
    for (int64_t i = 0; i < 98; ++i)
      EXPECT_TRUE(std::isfinite(h[i / 2]) && std::abs(dpre[i]) < 100) << describe(implementation) << " " << i;
    pre.set(0, std::nanf(""));
    pre.set(3, std::nanf(""));
    implementation.kernels.forward(pre.view(), kClamp, h.view(), pool);
    EXPECT_TRUE(std::isnan(h[0]) && std::isnan(h[1])) << describe(implementation);
  }
}

TEST(ClampedSwiglu, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : clamped_swiglu_table().usable()) {
    GuardedTensor pre(DType::kBF16, {333, 2 * 170}), dh(DType::kBF16, {333, 170});
    pre.fill_normal(5);
    dh.fill_normal(6);
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> outputs;
          outputs.emplace_back(DType::kBF16, Shape{333, 2 * 170});
          outputs.emplace_back(DType::kBF16, Shape{333, 170});
          implementation.kernels.backward(dh.view(), pre.view(), kClamp, outputs[0].view(), outputs[1].view(),
                                          pool);
          return outputs;
        },
        describe(implementation));
  }
}

TEST(ClampedSwiglu, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  GuardedTensor pre(DType::kF32, {2, 7}), h(DType::kF32, {2, 3});
  EXPECT_THROW(clamped_swiglu(pre.view(), kClamp, h.view(), pool), Error);
}

}  // namespace
}  // namespace tessera
