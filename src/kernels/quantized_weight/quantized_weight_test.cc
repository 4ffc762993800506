#include "kernels/quantized_weight/quantized_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/quantized_weight/int8_tiles.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr Quantization kKinds[] = {Quantization::kInt8, Quantization::kNf4, Quantization::kNf4Double};

// A weight, its quantized form, and what that form stands for, by the formulas of quantized_form.h.
struct QuantizedExample {
  QuantizedExample(Quantization kind, int64_t N, int64_t K, uint64_t seed) : w_NK(DType::kF32, {N, K}) {
    w_NK.fill_normal(seed, 0.05f);
    memory.resize(static_cast<size_t>(QuantizedMatrix<std::byte>{kind, nullptr, N, K}.size_bytes()));
    matrix = {kind, memory.data(), N, K};
    ThreadPool pool(2);
    MatrixQuantizer(matrix, 0).add(w_NK.view(), pool);
  }
  ConstQuantizedMatrix view() const { return {matrix.kind, matrix.data, matrix.N, matrix.K}; }

  int code(int64_t n, int64_t k) const {
    const std::byte* codes = matrix.codes(n);
    if (matrix.kind == Quantization::kInt8) return static_cast<int8_t>(codes[k]);
    return static_cast<int>(codes[k / 2] >> (k % 2 == 0 ? 4 : 0)) & 15;
  }
  double scale(int64_t n, int64_t k) const {
    if (matrix.kind == Quantization::kInt8) return reinterpret_cast<const float*>(matrix.scales())[n];
    std::array<float, 2> scales;
    nf4_scales(view(), n, k, 1, scales.data());
    return scales[0];
  }
  float value(int64_t n, int64_t k) const {
    const int q = code(n, k);
    return static_cast<float>(matrix.kind == Quantization::kInt8 ? q : kNf4Values[q]) *
           static_cast<float>(scale(n, k));
  }

  GuardedTensor w_NK;
  std::vector<std::byte> memory;
  QuantizedMatrix<std::byte> matrix;
};

// Odd tails of codes, blocks and groups of blocks.
struct Size {
  int64_t N, K;
};
constexpr Size kSizes[] = {{1, 1}, {3, 63}, {5, 64}, {2, 129}, {7, 1000}, {2, 256 * 64 + 65}};

TEST(QuantizeRows, Int8KeepsEveryWeightWithinHalfAStep) {
  for (const auto& [N, K] : kSizes) {
    const QuantizedExample of(Quantization::kInt8, N, K, 1);
    for (int64_t n = 0; n < N; ++n) {
      int largest = 0;
      for (int64_t k = 0; k < K; ++k) {
        largest = std::max(largest, std::abs(of.code(n, k)));
        ASSERT_NEAR(of.value(n, k), of.w_NK[n * K + k], 0.50001 * of.scale(n, k)) << n << ' ' << k;
      }
      EXPECT_EQ(largest, 127);
    }
  }
}

// Bytes per weight of a matrix of Llama 3 8B: codes, then scales.
TEST(QuantizedMatrix, HasTheSizeThatIsPlanned) {
  const auto bytes_per_weight = [](Quantization kind) {
    const ConstQuantizedMatrix matrix = {kind, nullptr, 14336, 4096};
    return static_cast<double>(matrix.size_bytes()) / (14336.0 * 4096);
  };
  EXPECT_EQ(bytes_per_weight(Quantization::kInt8), 1 + 4.0 / 4096);
  EXPECT_EQ(bytes_per_weight(Quantization::kNf4), 0.5 + 4.0 / 64);
  EXPECT_EQ(bytes_per_weight(Quantization::kNf4Double),
            0.5 + 1.0 / 64 + (1.0 / 64 / 256 * 4 + 64.0 / (14336 * 4096)));
}

TEST(QuantizeRows, GivesTheSameBitsInAnyPieces) {
  for (const Quantization kind : kKinds) {
    for (const int64_t K : {199, 200, 128, 5}) {
      QuantizedExample of(kind, 37, K, 4);
      const std::vector<std::byte> whole = of.memory;
      for (const int64_t rows : {1, 3, 16}) {
        ThreadPool pool(3);
        std::ranges::fill(of.memory, std::byte{0});
        MatrixQuantizer quantizer(of.matrix, 0);
        for (int64_t n = 0; n < 37; n += rows)
          quantizer.add(of.w_NK.view().rows(n, std::min<int64_t>(37, n + rows)), pool);
        EXPECT_TRUE(of.memory == whole) << K << ' ' << rows;
      }
    }
  }
}

TEST(QuantizeRows, ZerosStayZero) {
  for (const Quantization kind : kKinds) {
    QuantizedExample of(kind, 2, 70, 5);
    of.w_NK.fill(0);
    ThreadPool pool(1);
    MatrixQuantizer(of.matrix, 0).add(of.w_NK.view(), pool);
    for (int64_t k = 0; k < 70; ++k) EXPECT_EQ(of.value(1, k), 0);
  }
}

template <typename A>
void expect_rows_as_reference(DType dtype) {
  const auto reference = quantized_rows_ref();
  const auto& expected = reference.front().kernels.template rows<A>();
  for (const auto& implementation : quantized_rows_table().usable()) {
    const auto& rows = implementation.kernels.template rows<A>();
    for (const int64_t count : {1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 200}) {
      for (const float special : {0.5f, 1e30f, 1e-38f, std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN()}) {
        SCOPED_TRACE(fmt::format("{}, {} elements, {}", describe(implementation), count, special));
        GuardedTensor x(dtype, {count}), factors(DType::kF32, {count});
        x.fill_normal(6);
        if (special < 1e-20f) x.fill(0);
        factors.fill_normal(7);
        x.set(count / 2, special);
        const A* const data = x.view().template as<A>();
        const size_t size = static_cast<size_t>(count);
        std::vector<int8_t> codes(size + 1, 99), other(size + 1, 99);
        for (const float* const factor :
             {factors.view().template as<float>(), static_cast<float*>(nullptr)}) {
          const float scale = rows.quantize(data, factor, count, codes.data());
          const float want = expected.quantize(data, factor, count, other.data());
          EXPECT_TRUE(scale == want || (std::isnan(scale) && std::isnan(want))) << scale << ' ' << want;
          EXPECT_EQ(codes, other);
        }
        const std::vector<int32_t> sums(size, 123456789);
        GuardedTensor y(dtype, {count}), z(dtype, {count}), wide(DType::kF32, {count}),
            wide_z(DType::kF32, {count});
        rows.scale_sums(sums.data(), 1e-4f, factors.view().template as<float>(), data, count,
                        y.view().template as<A>());
        expected.scale_sums(sums.data(), 1e-4f, factors.view().template as<float>(), data, count,
                            z.view().template as<A>());
        EXPECT_EQ(y.bits(), z.bits());
        rows.scale_sums_to_float(sums.data(), 3.0f, nullptr, nullptr, count,
                                 wide.view().template as<float>());
        expected.scale_sums_to_float(sums.data(), 3.0f, nullptr, nullptr, count,
                                     wide_z.view().template as<float>());
        EXPECT_EQ(wide.bits(), wide_z.bits());
        rows.dequantize_int8(codes.data(), 0.37f, count, y.view().template as<A>());
        expected.dequantize_int8(codes.data(), 0.37f, count, z.view().template as<A>());
        EXPECT_EQ(y.bits(), z.bits());
        EXPECT_TRUE(y.guards_intact() && wide.guards_intact());
      }
      std::vector<uint8_t> codes;
      for (int64_t i = 0; i < count; i += 2) codes.push_back(static_cast<uint8_t>(37 * i + 11));
      const std::vector<float> scales = {0.1f, 7.0f, 0.0f, -1.0f};
      GuardedTensor to(dtype, {count}), want(dtype, {count});
      rows.dequantize_nf4(codes.data(), scales.data(), count, to.view().template as<A>());
      expected.dequantize_nf4(codes.data(), scales.data(), count, want.view().template as<A>());
      EXPECT_EQ(to.bits(), want.bits()) << describe(implementation) << count;
      EXPECT_TRUE(to.guards_intact());
    }
  }
}

TEST(QuantizedRows, EveryImplementationHasTheBitsOfTheReference) {
  expect_rows_as_reference<bf16>(DType::kBF16);
  expect_rows_as_reference<float>(DType::kF32);
}

TEST(Int8Product, IsExactInEveryImplementation) {
  const CounterRng rng(8, 0);
  for (const auto& implementation : int8_product_table().usable()) {
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                     {3, 5, 7},
                                                                     {17, 33, 65},
                                                                     {64, 48, 2050},
                                                                     {512, 256, 96},
                                                                     {5, 256, 1025},
                                                                     {95, 97, 1100}}) {
      for (const bool transposed : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} x {} x {}", describe(implementation), m, n, k));
        const int64_t a_stride = k + 3, b_stride = (transposed ? k : n) + 1;
        std::vector<int8_t> a(static_cast<size_t>(m * a_stride)),
            b(static_cast<size_t>((transposed ? n : k) * b_stride));
        // The largest codes, in which sums that saturate would show, and random ones.
        const auto code = [&](uint64_t i) {
          return static_cast<int8_t>(i % 3 == 0 ? 127 : static_cast<int>(rng.uniform(i) * 254.9f) - 127);
        };
        for (size_t i = 0; i < a.size(); ++i) a[i] = code(i);
        for (size_t i = 0; i < b.size(); ++i) b[i] = code(i + 1000);
        const Int8Kernels& kernels = implementation.kernels;
        const int64_t c_stride = round_up(n, kInt8PanelRows) + 16;
        TestScratch scratch(kernels.scratch_bytes), in_tiles(int8_tiled_bytes(m, k)),
            sums(round_up(m, kInt8PanelRows) * c_stride * static_cast<int64_t>(sizeof(int32_t)));
        auto* const c = reinterpret_cast<int32_t*>(sums.span().data());
        auto* const tiles = reinterpret_cast<int8_t*>(in_tiles.span().data());
        for (int64_t i = 0; i < m; ++i) {
          std::vector<int8_t> row(static_cast<size_t>(round_up(k, kInt8StepDepth)));
          std::copy_n(a.data() + i * a_stride, k, row.data());
          place_int8_row(row.data(), k, i, tiles);
        }
        kernels.multiply({m, n, k, kernels.uses_tiles ? tiles : a.data(), a_stride, b.data(), b_stride,
                          transposed, c, c_stride},
                         scratch.span().data());
        for (int64_t i = 0; i < m; i += std::max<int64_t>(1, m / 7)) {
          for (int64_t j = 0; j < n; ++j) {
            int64_t sum = 0;
            for (int64_t l = 0; l < k; ++l) {
              const int64_t at = transposed ? j * b_stride + l : l * b_stride + j;
              sum += int64_t{a[static_cast<size_t>(i * a_stride + l)]} * b[static_cast<size_t>(at)];
            }
            ASSERT_EQ(c[i * c_stride + j], sum) << i << ' ' << j;
          }
        }
      }
    }
  }
}

// The formulas of quantized_weight.h in int64 and float64: a_ti the rows that are quantized, q_ij their
// partners.
template <typename Code>
std::vector<Expected> expected_int8(const std::vector<double>& a, int64_t T, int64_t depth, int64_t columns,
                                    const Code& q, const std::vector<double>& scales,
                                    const std::vector<double>& bias) {
  std::vector<Expected> expected;
  for (int64_t t = 0; t < T; ++t) {
    float largest = 0;
    const auto of_row = [&](int64_t i) { return static_cast<float>(a[static_cast<size_t>(t * depth + i)]); };
    for (int64_t i = 0; i < depth; ++i) largest = std::max(largest, std::abs(of_row(i)));
    std::vector<int64_t> codes;
    for (int64_t i = 0; i < depth; ++i) codes.push_back(std::lrint(of_row(i) * (127.0f / largest)));
    for (int64_t j = 0; j < columns; ++j) {
      int64_t sum = 0;
      for (int64_t i = 0; i < depth; ++i) sum += codes[static_cast<size_t>(i)] * q(i, j);
      const double start = bias.empty() ? 0 : bias[static_cast<size_t>(j)];
      const double product = static_cast<double>(sum) * largest / 127 * scales[static_cast<size_t>(j)];
      expected.push_back({product + start, 6 * kFloatEps * (std::abs(product) + std::abs(start))});
    }
  }
  return expected;
}

struct ProductCase {
  int64_t T, N, K;
  DType dtype, result;
};
// Several parts of rows and columns, several panels, odd tails; rows beyond those quantized at once.
const ProductCase kProducts[] = {
    {1, 1, 1, DType::kBF16, DType::kBF16},       {5, 33, 65, DType::kF32, DType::kF32},
    {67, 257, 130, DType::kBF16, DType::kF32},   {513, 40, 300, DType::kBF16, DType::kBF16},
    {40, 260, 1100, DType::kBF16, DType::kBF16}, {2053, 7, 19, DType::kF32, DType::kF32}};

TEST(QuantizedProducts, Int8IsTheFormula) {
  ThreadPool pool(2);
  for (const auto& [T, N, K, dtype, result] : kProducts) {
    SCOPED_TRACE(fmt::format("T {} N {} K {} {}", T, N, K, dtype_name(dtype)));
    const QuantizedExample of(Quantization::kInt8, N, K, 9);
    std::vector<double> s;
    for (int64_t n = 0; n < N; ++n) s.push_back(of.scale(n, 0));
    GuardedTensor x(dtype, {T, K}), bias(dtype, {N}), y(result, {T, N}), dy(dtype, {T, N}),
        dx(result, {T, K});
    x.fill_normal(10);
    bias.fill_normal(11);
    dy.fill_normal(12, 1e-5f);
    TestScratch scratch(quantized_scratch_bytes(of.view(), T, dtype, 2, true));
    quantized_forward(x.view(), of.view(), bias.view(), y.view(), scratch.span(), pool);
    expect_within(
        y,
        expected_int8(
            x.values(), T, K, N, [&](int64_t k, int64_t n) { return of.code(n, k); }, s, bias.values()),
        "forward");
    std::vector<double> scaled;
    for (int64_t i = 0; i < T * N; ++i) {
      scaled.push_back(static_cast<float>(dy[i]) * static_cast<float>(s[static_cast<size_t>(i % N)]));
    }
    quantized_backward_input(dy.view(), of.view(), dx.view(), scratch.span(), pool);
    expect_within(dx,
                  expected_int8(scaled, T, N, K, [&](int64_t n, int64_t k) { return of.code(n, k); },
                                std::vector<double>(static_cast<size_t>(K), 1), {}),
                  "backward");
  }
}

TEST(QuantizedProducts, Nf4IsTheProductWithWhatItsCodesStandFor) {
  ThreadPool pool(2);
  for (const Quantization kind : {Quantization::kNf4, Quantization::kNf4Double}) {
    for (const auto& [T, N, K, dtype, result] : kProducts) {
      SCOPED_TRACE(fmt::format("T {} N {} K {} {}", T, N, K, dtype_name(dtype)));
      const QuantizedExample of(kind, N, K, 13);
      GuardedTensor w(dtype, {N, K}), x(dtype, {T, K}), bias(dtype, {N}), y(result, {T, N}),
          dy(dtype, {T, N}), dx(result, {T, K});
      for (int64_t i = 0; i < N * K; ++i) w.set(i, of.value(i / K, i % K));
      x.fill_normal(14);
      bias.fill_normal(15);
      dy.fill_normal(16, 1e-5f);
      std::vector<Expected> want_y, want_dx;
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t n = 0; n < N; ++n) {
          want_y.push_back(
              expected_sum(K, bias[n], [&, K = K](int64_t k) { return x[t * K + k] * w[n * K + k]; }));
        }
        for (int64_t k = 0; k < K; ++k) {
          want_dx.push_back(
              expected_sum(N, 0, [&, N = N, K = K](int64_t n) { return dy[t * N + n] * w[n * K + k]; }));
        }
      }
      TestScratch scratch(quantized_scratch_bytes(of.view(), T, dtype, 2, true));
      quantized_forward(x.view(), of.view(), bias.view(), y.view(), scratch.span(), pool);
      expect_within(y, want_y, "forward");
      quantized_backward_input(dy.view(), of.view(), dx.view(), scratch.span(), pool);
      expect_within(dx, want_dx, "backward");
    }
  }
}

TEST(QuantizedProducts, DoNotDependOnThreads) {
  for (const Quantization kind : kKinds) {
    const int64_t T = 600, N = 600, K = 90;
    const QuantizedExample of(kind, N, K, 17);
    GuardedTensor x(DType::kBF16, {T, K}), dy(DType::kBF16, {T, N});
    x.fill_normal(18);
    dy.fill_normal(19);
    expect_thread_independent(
        [&](ThreadPool& pool) {
          std::vector<GuardedTensor> out = {GuardedTensor(DType::kBF16, {T, N}),
                                            GuardedTensor(DType::kBF16, {T, K})};
          TestScratch scratch(quantized_scratch_bytes(of.view(), T, DType::kBF16, pool.num_threads(), true));
          quantized_forward(x.view(), of.view(), {}, out[0].view(), scratch.span(), pool);
          quantized_backward_input(dy.view(), of.view(), out[1].view(), scratch.span(), pool);
          return out;
        },
        "quantised products");
  }
}

// So that a run with a broken activation stops.
TEST(QuantizedProducts, ARowThatIsNotFiniteGivesNoFiniteResult) {
  ThreadPool pool(1);
  const QuantizedExample of(Quantization::kInt8, 4, 20, 20);
  GuardedTensor x(DType::kBF16, {2, 20}), y(DType::kBF16, {2, 4});
  x.fill_normal(21);
  x.set(3, std::numeric_limits<float>::infinity());
  TestScratch scratch(quantized_scratch_bytes(of.view(), 2, DType::kBF16, 1, false));
  quantized_forward(x.view(), of.view(), {}, y.view(), scratch.span(), pool);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(std::isnan(y[i]));
    EXPECT_TRUE(std::isfinite(y[4 + i]));
  }
}

}  // namespace
}  // namespace tessera
