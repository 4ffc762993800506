#include <gtest/gtest.h>

#include "kernels/layernorm/layernorm_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr float kEps = 1e-5f;
constexpr int64_t kWidths[] = {1, 3, 7, 8, 16, 17, 33, 64, 130, 257};

const LayerNormKernels& reference() {
  static const LayerNormKernels kernels = layernorm_ref().front().kernels;
  return kernels;
}

struct LayerNormCase {
  LayerNormCase(DType dtype, int64_t rows, int64_t width)
      : x(dtype, {rows, width}), w(dtype, {width}), b(dtype, {width}), dy(dtype, {rows, width}) {
    x.fill_normal(static_cast<uint64_t>(width), 3, 2);
    w.fill_normal(2, 0.5f, 1);
    b.fill_normal(3);
    dy.fill_normal(4);
  }
  GuardedTensor x, w, b, dy;
};

struct LayerNormResult {
  GuardedTensor y, stats, dx, dw, db;
};

LayerNormResult run(const LayerNormKernels& kernels, LayerNormCase& c, bool has_bias, Update update,
                    ThreadPool& pool) {
  LayerNormResult result = {{c.x.dtype(), c.x.shape()},
                            {DType::kF32, {c.x.shape()[0], 2}},
                            {c.x.dtype(), c.x.shape()},
                            {DType::kF32, c.w.shape()},
                            {DType::kF32, c.w.shape()}};
  if (update == Update::kAdd) {
    result.dx.fill(1);
    result.dw.fill(2);
    result.db.fill(3);
  }
  kernels.forward(c.x.view(), c.w.view(), has_bias ? c.b.view() : TensorView(), kEps, result.y.view(),
                  result.stats.view(), pool);
  kernels.backward(c.dy.view(), c.x.view(), c.w.view(), result.stats.view(), result.dx.view(), update,
                   result.dw.view(), has_bias ? result.db.view() : TensorView(), update, pool);
  return result;
}

double loss_of(LayerNormCase& c, ThreadPool& pool) {
  const LayerNormResult result = run(reference(), c, true, Update::kOverwrite, pool);
  double sum = 0;
  for (int64_t i = 0; i < result.y.num_elements(); ++i) sum += result.y[i] * c.dy[i];
  return sum;
}

TEST(LayerNormReference, GradientsAgreeWithDifferences) {
  ThreadPool pool(1);
  LayerNormCase c(DType::kF32, 3, 5);
  const LayerNormResult result = run(reference(), c, true, Update::kOverwrite, pool);
  const auto check = [&](GuardedTensor& at, const GuardedTensor& gradient) {
    for (int64_t i = 0; i < at.num_elements(); ++i) {
      const auto value = static_cast<float>(at[i]);
      at.set(i, value + 0x1.0p-7f);
      const double up = loss_of(c, pool);
      at.set(i, value - 0x1.0p-7f);
      const double down = loss_of(c, pool);
      at.set(i, value);
      EXPECT_NEAR((up - down) / 0x1.0p-6, gradient[i], 2e-4) << i;
    }
  };
  check(c.x, result.dx);
  check(c.w, result.dw);
  check(c.b, result.db);
}

TEST(LayerNorm, MatchesTheReferenceInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : layernorm_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : kWidths) {
        for (const bool has_bias : {false, true}) {
          for (const Update update : {Update::kOverwrite, Update::kAdd}) {
            LayerNormCase c(dtype, 37, D);
            const LayerNormResult expected = run(reference(), c, has_bias, update, pool);
            const LayerNormResult found = run(implementation.kernels, c, has_bias, update, pool);
            // Rounded once, perhaps to the other neighbour; sums of D or 37 terms of the size of one in
            // float32.
            const auto expect = [&](const GuardedTensor& a, const GuardedTensor& b, double terms,
                                    const char* what) {
              const double share = a.dtype() == DType::kBF16 ? 0x1.0p-7 : 0;
              for (int64_t i = 0; i < a.num_elements(); ++i) {
                ASSERT_NEAR(a[i], b[i], share * std::abs(b[i]) + terms * 0x1.0p-20)
                    << describe(implementation) << " " << dtype_name(dtype) << " D " << D << " " << what
                    << " " << i;
              }
              EXPECT_TRUE(a.guards_intact());
            };
            if (update == Update::kOverwrite) {
              GuardedTensor in_place = c.dy;
              implementation.kernels.backward(in_place.view(), c.x.view(), c.w.view(), found.stats.view(),
                                              in_place.view(), update, {}, {}, update, pool);
              EXPECT_TRUE(in_place.bits() == found.dx.bits()) << describe(implementation);
            }
            expect(found.y, expected.y, 8, "y");
            expect(found.dx, expected.dx, 8, "dx");
            expect(found.dw, expected.dw, 16, "dw");
            if (has_bias) expect(found.db, expected.db, 16, "db");
          }
        }
      }
    }
  }
}

TEST(LayerNorm, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : layernorm_table().usable()) {
    expect_thread_independent(
        [&](ThreadPool& pool) {
          LayerNormCase c(DType::kBF16, 150, 300);
          LayerNormResult result = run(implementation.kernels, c, true, Update::kOverwrite, pool);
          return std::vector<GuardedTensor>{result.y, result.dx, result.dw, result.db};
        },
        describe(implementation));
  }
}

TEST(LayerNorm, RefusesMismatchedShapes) {
  ThreadPool pool(1);
  LayerNormCase c(DType::kF32, 3, 4);
  GuardedTensor y(DType::kF32, {3, 4}), stats(DType::kF32, {3, 2}), few(DType::kF32, {2, 2});
  EXPECT_NO_THROW(layernorm(c.x.view(), c.w.view(), {}, kEps, y.view(), stats.view(), pool));
  EXPECT_THROW(layernorm(c.x.view(), c.w.view(), {}, kEps, y.view(), few.view(), pool), Error);
}

}  // namespace
}  // namespace tessera
