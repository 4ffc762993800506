#include <gtest/gtest.h>

#include "kernels/rope/rope_expected.h"
#include "kernels/rope/rope_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

struct Table {
  std::vector<float> cos, sin, query_scale;
  int64_t half_dim;

  Table(int64_t positions, int64_t head_dim) : half_dim(head_dim / 2) {
    for (int64_t p = 0; p < positions; ++p) {
      query_scale.push_back(1 + 0.1f * static_cast<float>(std::log(1.0 + static_cast<double>(p / 8))));
      for (int64_t i = 0; i < half_dim; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  RopeTable view() const {
    const Shape shape = {std::ssize(cos) / half_dim, half_dim};
    return {{cos.data(), DType::kF32, shape}, {sin.data(), DType::kF32, shape}};
  }
  // The options in the bits of `which`: neighbours as pairs, scaled queries.
  RopeTable with_options(int which) const {
    RopeTable table = view();
    table.interleaved = (which & 1) != 0;
    if ((which & 2) != 0) table.query_scale = {query_scale.data(), DType::kF32, {std::ssize(query_scale)}};
    return table;
  }
};

AttentionShape make_shape(int64_t H, int64_t G, int64_t E) { return {H, G, E, 0, 1}; }

constexpr int64_t kHeadDims[] = {2, 4, 6, 8, 14, 16, 18, 30, 32, 34, 62, 64, 66, 80, 96, 128};

std::vector<int32_t> some_positions() { return {0, 1, 2, 5, 0, 30, 31}; }

TEST(Rope, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  const std::vector<int32_t> positions = some_positions();
  for (const auto& implementation : rope_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t E : kHeadDims) {
        for (const bool inverse : {false, true}) {
          const AttentionShape shape = make_shape(3, 1, E);
          const Table table(32, E);
          GuardedTensor qkv(dtype, {std::ssize(positions), shape.qkv_width()});
          qkv.fill_normal(static_cast<uint64_t>(E));
          const std::vector<Expected> expected =
              expected_rope(qkv.values(), shape, positions, table.view(), inverse);
          implementation.kernels.rotate(qkv.view(), shape, positions, table.view(), inverse, pool);
          expect_within(
              qkv, expected,
              fmt::format("{} {} E {} inverse {}", describe(implementation), dtype_name(dtype), E, inverse));
        }
      }
    }
  }
}

TEST(Rope, OptionsMatchTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  const std::vector<int32_t> positions = some_positions();
  for (const auto& implementation : rope_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t R : kHeadDims) {
        for (int which = 0; which < 16; ++which) {
          const bool inverse = (which & 4) != 0;
          const AttentionShape shape = make_shape(4, 2, R + ((which & 8) != 0 ? 18 : 0));
          const Table angles(32, R);
          const RopeTable table = angles.with_options(which);
          GuardedTensor qkv(dtype, {std::ssize(positions), shape.qkv_width()});
          qkv.fill_normal(static_cast<uint64_t>(R));
          const std::vector<Expected> expected =
              expected_rope(qkv.values(), shape, positions, table, inverse);
          implementation.kernels.rotate(qkv.view(), shape, positions, table, inverse, pool);
          expect_within(
              qkv, expected,
              fmt::format("{} {} R {} options {}", describe(implementation), dtype_name(dtype), R, which));
        }
      }
    }
  }
}

TEST(Rope, InverseUndoesTheRotation) {
  ThreadPool pool(2);
  const std::vector<int32_t> positions = some_positions();
  const AttentionShape shape = make_shape(2, 2, 20);
  const Table table(32, 20);
  for (const auto& implementation : rope_table().usable()) {
    GuardedTensor qkv(DType::kF32, {std::ssize(positions), shape.qkv_width()});
    qkv.fill_normal(9);
    const std::vector<double> before = qkv.values();
    implementation.kernels.rotate(qkv.view(), shape, positions, table.view(), false, pool);
    implementation.kernels.rotate(qkv.view(), shape, positions, table.view(), true, pool);
    for (int64_t i = 0; i < qkv.num_elements(); ++i) {
      EXPECT_NEAR(qkv[i], before[static_cast<size_t>(i)], 1e-5) << describe(implementation) << " index " << i;
    }
  }
}

TEST(Rope, DoesNotDependOnTheNumberOfThreads) {
  const AttentionShape shape = make_shape(4, 2, 18);
  const Table table(200, 18);
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < 333; ++t) positions.push_back(t % 200);
  for (const auto& implementation : rope_table().usable()) {
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> outputs;
          outputs.emplace_back(DType::kBF16, Shape{333, shape.qkv_width()});
          outputs[0].fill_normal(4);
          implementation.kernels.rotate(outputs[0].view(), shape, positions, table.view(), false, pool);
          return outputs;
        },
        describe(implementation));
  }
}

TEST(Rope, RefusesPositionsOutsideTheTable) {
  ThreadPool pool(1);
  const AttentionShape shape = make_shape(1, 1, 4);
  const Table table(3, 4);
  GuardedTensor qkv(DType::kF32, {1, shape.qkv_width()});
  EXPECT_THROW(rope(qkv.view(), shape, std::vector<int32_t>{3}, table.view(), false, pool), Error);
  EXPECT_THROW(rope(qkv.view(), shape, std::vector<int32_t>{-1}, table.view(), false, pool), Error);
  EXPECT_NO_THROW(rope(qkv.view(), shape, std::vector<int32_t>{2}, table.view(), false, pool));
}

}  // namespace
}  // namespace tessera
