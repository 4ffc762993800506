#include <gtest/gtest.h>

#include "kernels/rmsnorm/rmsnorm_expected.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kWidths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257, 1000};
constexpr float kEps = 1e-5f;

TEST(RmsNormForward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        const int64_t R = 3;
        GuardedTensor x(dtype, {R, D}), w(dtype, {D}), y(dtype, {R, D}), rstd(DType::kF32, {R});
        x.fill_normal(static_cast<uint64_t>(D));
        w.fill_normal(static_cast<uint64_t>(D) + 7, 0.3f, 1);
        const ExpectedNorm want = expected_rmsnorm(x.values(), w.values(), kEps);
        const std::string context = fmt::format("{} {} D {}", describe(implementation), dtype_name(dtype), D);
        implementation.kernels.forward(x.view(), w.view(), kEps, y.view(), rstd.view(), pool);
        expect_within(y, want.y_RD, context);
        expect_within(rstd, want.rstd_R, context);
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
        const ExpectedNorm want = expected_rmsnorm(sum.values(), w.values(), kEps);
        implementation.kernels.add_forward(x.view(), y.view(), w.view(), kEps, norm.view(), rstd.view(),
                                           pool);
        const std::string context = fmt::format("{} {} D {}", describe(implementation), dtype_name(dtype), D);
        EXPECT_TRUE(x.bits() == sum.bits()) << context << ": sum";
        EXPECT_TRUE(x.guards_intact()) << context;
        expect_within(norm, want.y_RD, context);
        expect_within(rstd, want.rstd_R, context);
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
  const double rstd = expected_rmsnorm(x.values(), w.values(), kEps).rstd_R[0].value;
  const std::vector<Expected> dx =
      expected_rmsnorm_backward(dy.values(), x.values(), w.values(), {&rstd, 1}, /*former_RD=*/{});
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
    EXPECT_NEAR((loss(up) - loss(down)) / 2e-5, dx[i].value, 1e-8) << "index " << i;
  }
}

TEST(RmsNormBackward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        for (const int64_t R : {int64_t{1}, kRmsNormBackwardBlock + 1}) {
          GuardedTensor x(dtype, {R, D}), w(dtype, {D}), dy(dtype, {R, D}), dx(dtype, {R, D});
          GuardedTensor dw(DType::kF32, {D});
          x.fill_normal(1);
          w.fill_normal(2, 0.3f, 1);
          dy.fill_normal(3);
          const GuardedTensor rstd =
              rounded(expected_rmsnorm(x.values(), w.values(), kEps).rstd_R, DType::kF32, {R});
          const TestScratch scratch(rmsnorm_backward_scratch_bytes(R, D));
          const std::string context =
              fmt::format("{} {} R {} D {}", describe(implementation), dtype_name(dtype), R, D);
          dx.fill(1.5f);
          dw.fill(2);
          for (const auto& [dx_update, dw_update] :
               {std::pair(Update::kOverwrite, Update::kAdd), std::pair(Update::kAdd, Update::kOverwrite)}) {
            const auto want_dx = expected_rmsnorm_backward(dy.values(), x.values(), w.values(), rstd.values(),
                                                           former(dx, dx_update));
            const auto want_dw =
                expected_rmsnorm_dw(dy.values(), x.values(), rstd.values(), former(dw, dw_update));
            implementation.kernels.backward(dy.view(), x.view(), w.view(), rstd.view(), dx.view(), dx_update,
                                            dw.view(), dw_update, scratch.span(), pool);
            expect_within(dx, want_dx, context);
            expect_within(dw, want_dw, context);
          }
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

// Columns [begin, end) of every row.
std::vector<double> heads_of(const GuardedTensor& qkv, int64_t begin, int64_t end) {
  return values_at(qkv.view(), range(0, qkv.shape()[0]), range(begin, end));
}

// The elements of qkv with others in those columns.
std::vector<Expected> with_heads(const GuardedTensor& qkv, int64_t begin, int64_t end,
                                 const std::vector<Expected>& heads) {
  std::vector<Expected> expected = exactly(qkv);
  for (int64_t t = 0; t < qkv.shape()[0]; ++t) {
    std::copy_n(heads.begin() + t * (end - begin), end - begin,
                expected.begin() + t * qkv.shape()[1] + begin);
  }
  return expected;
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
        const ExpectedNorm want = expected_rmsnorm(heads_of(qkv, begin * E, end * E), w.values(), kEps);
        const std::string context = fmt::format("{} {} E {}", describe(implementation), dtype_name(dtype), E);
        implementation.kernels.head_forward(qkv.view(), shape, begin, end, w.view(), kEps, y.view(),
                                            rstd.view(), pool);
        expect_within(y, with_heads(qkv, begin * E, end * E, want.y_RD), context);
        expect_within(rstd, want.rstd_R, context);
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
      for (const auto& [E, is_whole] : {std::pair<int64_t, bool>(1, false),
                                        {6, false},
                                        {16, false},
                                        {33, false},
                                        {64, false},
                                        {80, false},
                                        {128, false},
                                        {5, true},
                                        {64, true}}) {
        const AttentionShape shape{3, 2, E, 0, 1};
        const int64_t T = kRmsNormBackwardBlock + 3, Q = shape.qkv_width(), begin = 0, end = 3;
        const int64_t num_norms = is_whole ? 1 : 3, width = 3 * E / num_norms;
        GuardedTensor qkv(dtype, {T, Q}), w(dtype, {width}), dqkv(dtype, {T, Q}), dw(DType::kF32, {width});
        qkv.fill_normal(1);
        w.fill_normal(2, 0.3f, 1);
        dqkv.fill_normal(3);
        GuardedTensor former_dqkv = dqkv;
        dw.fill(1);
        const std::vector<double> x = heads_of(qkv, begin * E, end * E);
        const std::vector<double> dy = heads_of(dqkv, begin * E, end * E);
        const GuardedTensor rstd =
            rounded(expected_rmsnorm(x, w.values(), kEps).rstd_R, DType::kF32, {T, num_norms});
        const std::vector<Expected> want =
            with_heads(dqkv, begin * E, end * E,
                       expected_rmsnorm_backward(dy, x, w.values(), rstd.values(), /*former_RD=*/{}));
        const TestScratch scratch(head_rmsnorm_backward_scratch_bytes(T, width));
        implementation.kernels.head_backward(dqkv.view(), qkv.view(), shape, begin, end, w.view(),
                                             rstd.view(), dw.view(), Update::kAdd, scratch.span(), pool);
        const std::string context =
            fmt::format("{} {} E {} norms {}", describe(implementation), dtype_name(dtype), E, num_norms);
        expect_within(dqkv, want, context);
        expect_within(
            dw,
            expected_rmsnorm_dw(dy, x, rstd.values(), std::vector<double>(static_cast<size_t>(width), 1.0)),
            context);
        dw.poison();
        implementation.kernels.head_backward(former_dqkv.view(), qkv.view(), shape, begin, end, w.view(),
                                             rstd.view(), dw.view(), Update::kOverwrite, scratch.span(),
                                             pool);
        expect_within(dw, expected_rmsnorm_dw(dy, x, rstd.values(), {}), context + " overwritten");
      }
    }
  }
}

// An offset is as good as a weight that has it, to the bit.
TEST(RmsNorm, AnOffsetIsAddedToTheWeight) {
  ThreadPool pool(2);
  for (const auto& implementation : rmsnorm_table().usable()) {
    const int64_t R = 70, D = 77;
    GuardedTensor x(DType::kF32, {R, D}), dy(DType::kF32, {R, D}), w(DType::kF32, {D}), sum(DType::kF32, {D});
    x.fill_normal(1);
    dy.fill_normal(2);
    w.fill_normal(3, 0.3f, 0);
    for (int64_t i = 0; i < D; ++i) sum.set(i, static_cast<float>(w[i]) + 1.0f);
    const TestScratch scratch(rmsnorm_backward_scratch_bytes(R, D));
    std::vector<GuardedTensor> outputs[2];
    for (const int which : {0, 1}) {
      std::vector<GuardedTensor>& out = outputs[which];
      for (const Shape& shape : {Shape{R, D}, Shape{R}, Shape{R, D}, Shape{D}})
        out.emplace_back(DType::kF32, shape);
      const NormWeight weight = which == 0 ? NormWeight(w.view(), 1.0f) : NormWeight(sum.view());
      implementation.kernels.forward(x.view(), weight, kEps, out[0].view(), out[1].view(), pool);
      implementation.kernels.backward(dy.view(), x.view(), weight, out[1].view(), out[2].view(),
                                      Update::kOverwrite, out[3].view(), Update::kOverwrite, scratch.span(),
                                      pool);
    }
    // The reference adds in double.
    const double tolerance = implementation.isa == Isa::kRef ? 1e-6 : 0;
    for (size_t k = 0; k < 4; ++k) {
      for (int64_t i = 0; i < outputs[0][k].num_elements(); ++i)
        ASSERT_NEAR(outputs[0][k][i], outputs[1][k][i], tolerance * (1 + std::abs(outputs[1][k][i])))
            << describe(implementation) << " output " << k << " index " << i;
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
