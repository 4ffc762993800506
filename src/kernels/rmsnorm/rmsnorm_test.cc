#include <gtest/gtest.h>

#include "kernels/rmsnorm/rmsnorm_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kWidths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257, 1000};
constexpr float kEps = 1e-5f;

// Relative error of a float32 sum of n terms over at least 4 lanes, plus a few roundings around it.
double sum_error(int64_t n) { return (static_cast<double>(n) / 4 + 12) * kFloatEps; }

double row_rstd(const GuardedTensor& x, int64_t begin, int64_t D) {
  double sum = 0;
  for (int64_t i = 0; i < D; ++i) sum += x[begin + i] * x[begin + i];
  return 1 / std::sqrt(sum / static_cast<double>(D) + static_cast<double>(kEps));
}

// Row r of y and rstd from row r of x, rows of D elements.
void expect_forward_row(const GuardedTensor& x, int64_t begin, const GuardedTensor& w, int64_t D, Expected* y,
                        double* rstd, double* rstd_bound) {
  *rstd = row_rstd(x, begin, D);
  *rstd_bound = *rstd * sum_error(D);
  for (int64_t i = 0; i < D; ++i) {
    const auto at = static_cast<size_t>(begin + i);
    y->value[at] = w[i] * x[begin + i] * *rstd;
    y->bound[at] = std::abs(y->value[at]) * sum_error(D);
  }
}

// Gradients of L = sum dy y for one row. dx by the chain rule in float64 (checked against differences below),
// dw accumulated.
void expect_backward_row(const GuardedTensor& dy, const GuardedTensor& x, int64_t begin,
                         const GuardedTensor& w, double rstd, int64_t D, Expected* dx, Expected* dw) {
  double mean = 0, mean_abs = 0;
  for (int64_t i = 0; i < D; ++i) {
    const double term = dy[begin + i] * w[i] * x[begin + i] / static_cast<double>(D);
    mean += term;
    mean_abs += std::abs(term);
  }
  for (int64_t i = 0; i < D; ++i) {
    const auto at = static_cast<size_t>(begin + i);
    const double g = dy[begin + i] * w[i], projection = x[begin + i] * rstd * rstd;
    dx->value[at] = rstd * (g - projection * mean);
    dx->bound[at] = rstd * (std::abs(g) * 6 * kFloatEps + std::abs(projection) * mean_abs * sum_error(D));
    const double term = dy[begin + i] * x[begin + i] * rstd;
    dw->value[static_cast<size_t>(i)] += term;
    dw->bound[static_cast<size_t>(i)] += std::abs(term);  // to be multiplied by the sum's error by the caller
  }
}

void scale_bounds(Expected* expected, double factor) {
  for (double& bound : expected->bound) bound *= factor;
}

TEST(RmsNormForward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        const int64_t R = 3;
        GuardedTensor x(dtype, {R, D}), w(dtype, {D}), y(dtype, {R, D}), rstd(DType::kF32, {R});
        x.fill_normal(static_cast<uint64_t>(D));
        w.fill_normal(static_cast<uint64_t>(D) + 7, 0.3f, 1);
        Expected want_y(R * D), want_rstd(R);
        for (int64_t r = 0; r < R; ++r) {
          expect_forward_row(x, r * D, w, D, &want_y, &want_rstd.value[static_cast<size_t>(r)],
                             &want_rstd.bound[static_cast<size_t>(r)]);
        }
        const std::string context = fmt::format("{} {} D {}", describe(implementation), dtype_name(dtype), D);
        implementation.kernels.forward(x.view(), w.view(), kEps, y.view(), rstd.view(), pool);
        expect_within(y, want_y, context);
        expect_within(rstd, want_rstd, context);
        implementation.kernels.forward(x.view(), w.view(), kEps, x.view(), rstd.view(), pool);
        EXPECT_TRUE(x.bits() == y.bits()) << context << ": in place differs";
      }
    }
  }
}

TEST(RmsNormForward, ZeroRowsGiveZeroAndTheRstdOfEps) {
  ThreadPool pool(1);
  for (const auto& implementation : rmsnorm_table().usable()) {
    GuardedTensor x(DType::kF32, {2, 20}), w(DType::kF32, {20}), y(DType::kF32, {2, 20}),
        rstd(DType::kF32, {2});
    x.fill(0);
    w.fill(1);
    implementation.kernels.forward(x.view(), w.view(), kEps, y.view(), rstd.view(), pool);
    EXPECT_EQ(y.values(), std::vector<double>(40, 0.0)) << describe(implementation);
    EXPECT_NEAR(rstd[1], 1 / std::sqrt(1e-5), 1e-4) << describe(implementation);
  }
}

TEST(AddRmsNorm, EqualsAddThenNorm) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        const int64_t T = 4;
        GuardedTensor x(dtype, {T, D}), y(dtype, {T, D}), w(dtype, {D});
        GuardedTensor sum(dtype, {T, D}), norm(dtype, {T, D}), rstd(DType::kF32, {T});
        x.fill_normal(1);
        y.fill_normal(2, 2);
        w.fill_normal(3, 0.2f, 1);
        for (int64_t i = 0; i < T * D; ++i) sum.set(i, static_cast<float>(x[i]) + static_cast<float>(y[i]));
        Expected want_norm(T * D), want_rstd(T);
        for (int64_t t = 0; t < T; ++t) {
          expect_forward_row(sum, t * D, w, D, &want_norm, &want_rstd.value[static_cast<size_t>(t)],
                             &want_rstd.bound[static_cast<size_t>(t)]);
        }
        implementation.kernels.add_forward(x.view(), y.view(), w.view(), kEps, norm.view(), rstd.view(),
                                           pool);
        const std::string context = fmt::format("{} {} D {}", describe(implementation), dtype_name(dtype), D);
        EXPECT_TRUE(x.bits() == sum.bits()) << context << ": sum";
        EXPECT_TRUE(x.guards_intact()) << context;
        expect_within(norm, want_norm, context);
        expect_within(rstd, want_rstd, context);
      }
    }
  }
}

TEST(RmsNormBackward, FormulaAgreesWithDifferences) {
  const int64_t D = 7;
  GuardedTensor x(DType::kF32, {1, D}), w(DType::kF32, {D}), dy(DType::kF32, {1, D});
  x.fill_normal(1);
  w.fill_normal(2, 0.5f, 1);
  dy.fill_normal(3);
  Expected dx(D), dw(D);
  expect_backward_row(dy, x, 0, w, row_rstd(x, 0, D), D, &dx, &dw);
  const auto loss = [&](const std::vector<double>& at) {
    double square_sum = 0, sum = 0;
    for (const double value : at) square_sum += value * value;
    for (int64_t i = 0; i < D; ++i) {
      sum +=
          dy[i] * w[i] * at[static_cast<size_t>(i)] / std::sqrt(square_sum / D + static_cast<double>(kEps));
    }
    return sum;
  };
  for (size_t i = 0; i < D; ++i) {
    std::vector<double> up = x.values(), down = x.values();
    up[i] += 1e-5;
    down[i] -= 1e-5;
    EXPECT_NEAR((loss(up) - loss(down)) / 2e-5, dx.value[i], 1e-8) << "index " << i;
  }
}

TEST(RmsNormBackward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        for (const int64_t R : {int64_t{1}, kRmsNormBackwardBlock + 1}) {
          GuardedTensor x(dtype, {R, D}), w(dtype, {D}), dy(dtype, {R, D}), rstd(DType::kF32, {R});
          GuardedTensor dx(dtype, {R, D}), dw(DType::kF32, {D});
          x.fill_normal(1);
          w.fill_normal(2, 0.3f, 1);
          dy.fill_normal(3);
          dw.fill(2);
          Expected want_dx(R * D), want_dw(D);
          want_dw.value.assign(static_cast<size_t>(D), 2);
          want_dw.bound.assign(static_cast<size_t>(D), 2);
          for (int64_t r = 0; r < R; ++r) {
            rstd.set(r, static_cast<float>(row_rstd(x, r * D, D)));
            expect_backward_row(dy, x, r * D, w, rstd[r], D, &want_dx, &want_dw);
          }
          scale_bounds(&want_dw, static_cast<double>(R + 4) * kFloatEps);
          const TestScratch scratch(rmsnorm_backward_scratch_bytes(R, D));
          const std::string context =
              fmt::format("{} {} R {} D {}", describe(implementation), dtype_name(dtype), R, D);
          implementation.kernels.backward(dy.view(), x.view(), w.view(), rstd.view(), dx.view(),
                                          Update::kOverwrite, dw.view(), Update::kAdd, scratch.span(), pool);
          expect_within(dx, want_dx, context);
          expect_within(dw, want_dw, context);

          for (size_t i = 0; i < want_dx.value.size(); ++i) {
            want_dx.value[i] += 1.5;
            want_dx.bound[i] += 2 * kFloatEps;
          }
          for (double& value : want_dw.value) value -= 2;
          dx.fill(1.5f);
          dw.poison();
          implementation.kernels.backward(dy.view(), x.view(), w.view(), rstd.view(), dx.view(), Update::kAdd,
                                          dw.view(), Update::kOverwrite, scratch.span(), pool);
          expect_within(dx, want_dx, context + " added");
          expect_within(dw, want_dw, context + " overwritten");
        }
      }
    }
  }
}

TEST(RmsNormBackward, MayOverwriteTheGradientItReads) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      const int64_t R = 5, D = 37;
      GuardedTensor x(dtype, {R, D}), w(dtype, {D}), dy(dtype, {R, D}), rstd(DType::kF32, {R});
      GuardedTensor dx(dtype, {R, D}), dw(DType::kF32, {D});
      x.fill_normal(1);
      w.fill_normal(2, 0.3f, 1);
      dy.fill_normal(3);
      rstd.fill(0.9f);
      dw.fill(0);
      const TestScratch scratch(rmsnorm_backward_scratch_bytes(R, D));
      implementation.kernels.backward(dy.view(), x.view(), w.view(), rstd.view(), dx.view(),
                                      Update::kOverwrite, dw.view(), Update::kAdd, scratch.span(), pool);
      const std::string separate_dw = dw.bits();
      dw.fill(0);
      implementation.kernels.backward(dy.view(), x.view(), w.view(), rstd.view(), dy.view(),
                                      Update::kOverwrite, dw.view(), Update::kAdd, scratch.span(), pool);
      EXPECT_TRUE(dy.bits() == dx.bits()) << describe(implementation);
      EXPECT_TRUE(dw.bits() == separate_dw) << describe(implementation);
    }
  }
}

TEST(HeadRmsNorm, NormsItsHeadsAndCopiesTheOthers) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t E : {1, 6, 16, 33, 64, 80, 128}) {
        const AttentionShape shape{3, 2, E, 0, 1};
        const int64_t T = 5, Q = shape.qkv_width(), begin = 3, end = 5;  // the key heads
        GuardedTensor qkv(dtype, {T, Q}), w(dtype, {E}), y(dtype, {T, Q}),
            rstd(DType::kF32, {T, end - begin});
        qkv.fill_normal(1);
        w.fill_normal(2, 0.3f, 1);
        Expected want(T * Q), want_rstd(T * (end - begin));
        want.value = qkv.values();
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t head = begin; head < end; ++head) {
            const auto at = static_cast<size_t>(t * (end - begin) + head - begin);
            expect_forward_row(qkv, t * Q + head * E, w, E, &want, &want_rstd.value[at],
                               &want_rstd.bound[at]);
          }
        }
        const std::string context = fmt::format("{} {} E {}", describe(implementation), dtype_name(dtype), E);
        implementation.kernels.head_forward(qkv.view(), shape, begin, end, w.view(), kEps, y.view(),
                                            rstd.view(), pool);
        expect_within(y, want, context);
        expect_within(rstd, want_rstd, context);
        implementation.kernels.head_forward(qkv.view(), shape, begin, end, w.view(), kEps, qkv.view(),
                                            rstd.view(), pool);
        EXPECT_TRUE(qkv.bits() == y.bits()) << context << ": in place differs";
      }
    }
  }
}

TEST(HeadRmsNorm, BackwardMatchesTheFormulaAndLeavesOtherHeads) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t E : {1, 6, 16, 33, 64, 80, 128}) {
        const AttentionShape shape{3, 2, E, 0, 1};
        const int64_t T = kRmsNormBackwardBlock + 3, Q = shape.qkv_width(), begin = 0, end = 3;
        GuardedTensor qkv(dtype, {T, Q}), w(dtype, {E}), dqkv(dtype, {T, Q}),
            rstd(DType::kF32, {T, end - begin});
        GuardedTensor dw(DType::kF32, {E});
        qkv.fill_normal(1);
        w.fill_normal(2, 0.3f, 1);
        dqkv.fill_normal(3);
        GuardedTensor former_dqkv = dqkv;
        dw.fill(1);
        Expected want(T * Q), want_dw(E);
        want.value = dqkv.values();
        want_dw.value.assign(static_cast<size_t>(E), 1);
        want_dw.bound.assign(static_cast<size_t>(E), 1);
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t head = begin; head < end; ++head) {
            rstd.set(t * (end - begin) + head - begin,
                     static_cast<float>(row_rstd(qkv, t * Q + head * E, E)));
            expect_backward_row(dqkv, qkv, t * Q + head * E, w, rstd[t * (end - begin) + head - begin], E,
                                &want, &want_dw);
          }
        }
        scale_bounds(&want_dw, static_cast<double>(T * (end - begin) + 4) * kFloatEps);
        const TestScratch scratch(head_rmsnorm_backward_scratch_bytes(T, shape));
        implementation.kernels.head_backward(dqkv.view(), qkv.view(), shape, begin, end, w.view(),
                                             rstd.view(), dw.view(), Update::kAdd, scratch.span(), pool);
        const std::string context = fmt::format("{} {} E {}", describe(implementation), dtype_name(dtype), E);
        expect_within(dqkv, want, context);
        expect_within(dw, want_dw, context);
        for (double& value : want_dw.value) value -= 1;
        dw.poison();
        implementation.kernels.head_backward(former_dqkv.view(), qkv.view(), shape, begin, end, w.view(),
                                             rstd.view(), dw.view(), Update::kOverwrite, scratch.span(),
                                             pool);
        expect_within(dw, want_dw, context + " overwritten");
      }
    }
  }
}

TEST(RmsNorm, DoesNotDependOnTheNumberOfThreads) {
  const int64_t R = 5 * kRmsNormBackwardBlock + 3, D = 70;
  GuardedTensor x(DType::kF32, {R, D}), w(DType::kF32, {D}), dy(DType::kF32, {R, D});
  x.fill_normal(1);
  w.fill_normal(2, 0.3f, 1);
  dy.fill_normal(3);
  for (const auto& implementation : rmsnorm_table().usable()) {
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> out;
          for (const Shape& shape : {Shape{R, D}, Shape{R}, Shape{R, D}, Shape{D}})
            out.emplace_back(DType::kF32, shape);
          const TestScratch scratch(rmsnorm_backward_scratch_bytes(R, D));
          implementation.kernels.forward(x.view(), w.view(), kEps, out[0].view(), out[1].view(), pool);
          implementation.kernels.backward(dy.view(), x.view(), w.view(), out[1].view(), out[2].view(),
                                          Update::kOverwrite, out[3].view(), Update::kOverwrite,
                                          scratch.span(), pool);
          return out;
        },
        describe(implementation));
  }
}

TEST(RmsNorm, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  GuardedTensor x(DType::kF32, {2, 3}), w(DType::kF32, {4}), y(DType::kF32, {2, 3}), rstd(DType::kF32, {2});
  EXPECT_THROW(rmsnorm(x.view(), w.view(), kEps, y.view(), rstd.view(), pool), Error);
  GuardedTensor good(DType::kF32, {3}), dw(DType::kF32, {3});
  EXPECT_THROW(rmsnorm_backward(y.view(), x.view(), good.view(), rstd.view(), y.view(), Update::kOverwrite,
                                dw.view(), Update::kAdd, {}, pool),
               Error);
}

}  // namespace
}  // namespace tessera
