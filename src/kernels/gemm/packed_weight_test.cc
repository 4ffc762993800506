// Weights with kept packed forms, and products cut into several parts: bit-identical to plain ones.
#include <gtest/gtest.h>

#include <vector>

#include "base/memory.h"
#include "kernels/gemm/gemm_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr DType kBF16 = DType::kBF16;

// A weight with both packed forms, in memory initially poisoned.
class PackedWeight {
 public:
  PackedWeight(const GuardedTensor& w, int64_t N, int64_t K, ThreadPool& pool) : w_(&w) {
    const int64_t size = packed_weight_bytes(N, K, kBF16);
    memory_ = PageBuffer(2 * size);
    for (std::byte& byte : memory_.as<std::byte>()) byte = std::byte{0xFF};  // NaN
    forms_ = {memory_.data(), memory_.data() + size};
    pack_linear_weight(w.view(), forms_, {0, N}, pool);
  }
  LinearWeight weight() const { return {w_->view(), forms_}; }

 private:
  const GuardedTensor* w_;
  PageBuffer memory_;
  PackedForms forms_;
};

bool packs_weights() { return packed_weight_bytes(32, 32, kBF16) > 0; }

#define SKIP_UNLESS_PACKING()                                                                \
  if (!packs_weights()) {                                                                    \
    GTEST_SKIP() << gemm_table().chosen_implementation().name << " takes row-major weights"; \
  }

struct PackedSizes {
  int64_t T, N, K;
};

// Outputs [begin, end) of the layer, with and without packed forms.
void expect_same_products(PackedSizes s, int64_t begin, int64_t end) {
  ThreadPool pool(2);
  GuardedTensor x(kBF16, {s.T, s.K}), w(kBF16, {s.N, s.K}), dy(kBF16, {s.T, end - begin});
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  const PackedWeight packed(w, s.N, s.K, pool);
  std::vector<std::vector<double>> y, dx;
  for (const LinearWeight& whole : {LinearWeight(w.view()), packed.weight()}) {
    const LinearWeight weight = whole.rows(begin, end);
    const TestScratch scratch(
        gemm_scratch_bytes({s.T, {end - begin, s.K, whole.packed_rows, begin}, kBF16, 2}));
    GuardedTensor y_TN(kBF16, {s.T, end - begin}), dx_TK(DType::kF32, {s.T, s.K});
    gemm_forward(x.view(), weight, {}, y_TN.view(), scratch.span(), pool);
    gemm_backward_input(dy.view(), weight, dx_TK.view(), Update::kOverwrite, scratch.span(), pool);
    EXPECT_TRUE(y_TN.guards_intact() && dx_TK.guards_intact());
    y.push_back(y_TN.values());
    dx.push_back(dx_TK.values());
  }
  const std::string context = fmt::format("T {} N {} K {} rows {} to {}", s.T, s.N, s.K, begin, end);
  EXPECT_EQ(y[0], y[1]) << context;
  EXPECT_EQ(dx[0], dx[1]) << context;
}

TEST(PackedWeight, ProductsAreTheSameForEveryRemainder) {
  SKIP_UNLESS_PACKING();
  for (const int64_t odd : {1, 15, 31, 32, 33, 64, 65, 511, 513, 545}) {
    expect_same_products({40, odd, 70}, 0, odd);
    expect_same_products({40, 70, odd}, 0, 70);
    expect_same_products({17 + odd, 70, 40}, 0, 70);
  }
}

TEST(PackedWeight, RowsOfItAreAWeight) {
  SKIP_UNLESS_PACKING();
  const PackedSizes sizes = {33, 8200, 40};  // backward_input's form has chunks of 512 rows
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 512}, {512, 1536}, {7680, 8200}, {0, 8200}, {32, 64}, {512, 520}, {5, 77}, {8199, 8200}}) {
    expect_same_products(sizes, begin, end);
  }
}

TEST(PackedWeight, FormsThatAreNullAreNotWritten) {
  SKIP_UNLESS_PACKING();
  ThreadPool pool(2);
  GuardedTensor w(kBF16, {70, 50});
  w.fill_normal(1);
  const PackedWeight both(w, 70, 50, pool);
  const auto size = static_cast<size_t>(packed_weight_bytes(70, 50, kBF16));
  PageBuffer memory(static_cast<int64_t>(2 * size));
  const PackedForms forms = {memory.data(), memory.data() + size};
  const auto holds = [&](const std::byte* at, const std::byte* other) {
    return std::equal(at, at + size, other);
  };
  pack_linear_weight(w.view(), {forms.forward, nullptr}, {0, 70}, pool);
  EXPECT_TRUE(holds(forms.forward, both.weight().packed.forward));
  EXPECT_FALSE(holds(forms.backward_input, both.weight().packed.backward_input));
  pack_linear_weight(w.view(), {nullptr, forms.backward_input}, {0, 70}, pool);
  EXPECT_TRUE(holds(forms.backward_input, both.weight().packed.backward_input));
}

TEST(PackedWeight, RangesOfRowsMakeUpTheWhole) {
  SKIP_UNLESS_PACKING();
  ThreadPool pool(2);
  // Chunks of backward_input's form: 384 rows for N = 768, 416 for 800 and 805, where the last one is
  // shorter.
  for (const int64_t N : {31, 32, 70, 768, 800, 805}) {
    constexpr int64_t K = 50;
    GuardedTensor w(kBF16, {N, K});
    w.fill_normal(1);
    const PackedWeight whole(w, N, K, pool);
    const auto size = static_cast<size_t>(packed_weight_bytes(N, K, kBF16));
    PageBuffer memory(static_cast<int64_t>(2 * size));
    for (std::byte& byte : memory.as<std::byte>()) byte = std::byte{0xFF};
    const PackedForms forms = {memory.data(), memory.data() + size};
    const int64_t first = std::min<int64_t>(N, 32), second = std::min<int64_t>(N, 480);
    for (const RowRange& rows : {RowRange{second, N}, RowRange{first, second}, RowRange{first, first}}) {
      if (rows.begin % kPackedRows == 0) pack_linear_weight(w.view(), forms, rows, pool);
    }
    EXPECT_FALSE(std::equal(forms.forward, forms.forward + size, whole.weight().packed.forward)) << N;
    pack_linear_weight(w.view(), forms, {0, first}, pool);
    EXPECT_TRUE(std::equal(forms.forward, forms.forward + size, whole.weight().packed.forward)) << N;
    EXPECT_TRUE(
        std::equal(forms.backward_input, forms.backward_input + size, whole.weight().packed.backward_input))
        << N;
  }
}

// An operand of 34 MiB is packed in two parts.
TEST(GemmParts, RowsComeOutAsOnTheirOwn) {
  SKIP_UNLESS_PACKING();
  ThreadPool pool(2);
  constexpr int64_t T = 544, N = 40, K = 32768;
  GuardedTensor x(kBF16, {T, K}), w(kBF16, {N, K}), y(DType::kF32, {T, N}), part(DType::kF32, {T / 2, N});
  x.fill_normal(1);
  w.fill_normal(2);
  const TestScratch scratch(gemm_scratch_bytes({T, {N, K}, kBF16, 2}));
  gemm_forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool);
  for (const int64_t begin : {int64_t{0}, T / 2}) {
    gemm_forward(ConstTensorView(x.view()).rows(begin, begin + T / 2), w.view(), {}, part.view(),
                 scratch.span(), pool);
    for (int64_t i = 0; i < T / 2 * N; ++i) {
      ASSERT_EQ(y[begin * N + i], part[i]) << "row " << begin + i / N << " column " << i % N;
    }
  }
}

// More tokens than fit in one pass of backward_weight; integers, so sums are exact.
TEST(GemmParts, WeightGradientsOfManyTokensAreExact) {
  ThreadPool pool(2);
  constexpr int64_t T = 4100, N = 35, K = 33;
  GuardedTensor x(kBF16, {T, K}), dy(kBF16, {T, N}), dw(DType::kF32, {N, K});
  for (int64_t i = 0; i < T * K; ++i) x.set(i, static_cast<double>(i * 7 % 5 - 2));
  for (int64_t i = 0; i < T * N; ++i) dy.set(i, static_cast<double>(i * 11 % 7 - 3));
  const TestScratch scratch(gemm_scratch_bytes({T, {N, K}, kBF16, 2}));
  gemm_backward_weight(dy.view(), x.view(), dw.view(), Update::kOverwrite, scratch.span(), pool);
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      double sum = 0;
      for (int64_t t = 0; t < T; ++t) sum += dy[t * N + n] * x[t * K + k];
      ASSERT_EQ(dw[n * K + k], sum) << "n " << n << " k " << k;
    }
  }
}

}  // namespace
}  // namespace tessera
