#include "kernels/gemm/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/gemm/amx_blocking.h"
#include "kernels/gemm/gemm_expected.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/narrow_products.h"
#include "kernels/gemm/onednn_products.h"
#include "kernels/gemm/row_slices.h"
#include "platform/cpu.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

struct Sizes {
  int64_t T, N, K;
};

// Every remainder of tiles (16 rows, depth 32 or 16), of vectors and of pairs, one axis at a time; then
// slices of every kind.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> sizes;
  for (const int64_t odd : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65}) {
    sizes.push_back({odd, 24, 40});
    sizes.push_back({24, odd, 40});
    sizes.push_back({24, 40, odd});
  }
  sizes.push_back({1, 1, 1});
  sizes.push_back({341, 5, 70});
  sizes.push_back({597, 130, 3});
  sizes.push_back({1, 1030, 33});
  sizes.push_back({9, 277, 515});
  return sizes;
}

// The tables repeat an implementation for every instruction set that oneDNN may choose on its own.
std::vector<Implementation<GemmKernels>> different_implementations() {
  std::vector<Implementation<GemmKernels>> result;
  std::set<decltype(GemmKernels::forward)> seen;
  for (const auto& implementation : gemm_table().usable()) {
    if (seen.insert(implementation.kernels.forward).second) result.push_back(implementation);
  }
  return result;
}

TestScratch scratch_for(const GemmKernels& kernels, DType dtype, const ThreadPool& pool) {
  const auto bytes = [&](int64_t N) {
    return max_scratch_bytes(kernels, {1100, {N, 2048}, dtype, pool.num_threads()});
  };
  return TestScratch(std::max(bytes(1), bytes(2048)));
}

// out_IJ plus the values of `former`, which has a value per element, one row for all, or is empty.
std::vector<Expected> expected_products(const Factor& a, const Factor& b, const std::vector<double>& former) {
  std::vector<std::vector<double>> b_rows;
  for (int64_t j = 0; j < b.num_rows(); ++j) b_rows.push_back(b.row(j));
  std::vector<Expected> out_IJ(static_cast<size_t>(a.num_rows() * b.num_rows()));
  for (size_t n = 0; n < out_IJ.size(); n += b_rows.size()) {
    const std::vector<double> a_row = a.row(static_cast<int64_t>(n / b_rows.size()));
    for (size_t j = 0; j < b_rows.size(); ++j) {
      out_IJ[n + j] =
          expected_product(a_row, b_rows[j], former.empty() ? 0 : former[(n + j) % former.size()]);
    }
  }
  return out_IJ;
}

// Integers -3 ... 3: every partial sum is exact in float32, so the result is the exact one rounded once.
void fill_integers(GuardedTensor& tensor, uint64_t seed) {
  const CounterRng rng(seed, 1);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, std::floor(rng.uniform(static_cast<uint64_t>(i)) * 7) - 3);
  }
}

void fill_reals(GuardedTensor& tensor, uint64_t seed) { tensor.fill_normal(seed); }

// Checks all products of one implementation, dtype and shape against float64.
void check_products(const Implementation<GemmKernels>& implementation, DType dtype, Sizes s, bool integers,
                    ThreadPool& pool) {
  const auto fill = integers ? fill_integers : fill_reals;
  const auto want = [&](const Factor& a, const Factor& b, const std::vector<double>& former) {
    std::vector<Expected> expected = expected_products(a, b, former);
    // Leaves only the rounding to the output type.
    for (Expected& element : expected) element.bound *= integers ? 0 : 1;
    return expected;
  };
  const GemmKernels& kernels = implementation.kernels;
  const TestScratch scratch = scratch_for(kernels, dtype, pool);
  const std::string context = fmt::format("{} {} T {} N {} K {} {}", describe(implementation),
                                          dtype_name(dtype), s.T, s.N, s.K, integers ? "integers" : "reals");
  GuardedTensor x(dtype, {s.T, s.K}), w(dtype, {s.N, s.K}), bias(dtype, {s.N}), dy(dtype, {s.T, s.N});
  fill(x, 1);
  fill(w, 2);
  fill(bias, 3);
  fill(dy, 4);
  const std::vector<Expected> y_expected = want({x.view()}, {w.view()}, {});
  const std::vector<Expected> y_expected_with_bias = want({x.view()}, {w.view()}, bias.values());
  for (const DType y_dtype : {dtype, DType::kF32}) {
    GuardedTensor y(y_dtype, {s.T, s.N});
    kernels.forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool);
    expect_within(y, y_expected, context + " forward");
    y.poison();
    kernels.forward(x.view(), w.view(), bias.view(), y.view(), scratch.span(), pool);
    expect_within(y, y_expected_with_bias, context + " forward with bias");
  }
  GuardedTensor dw(DType::kF32, {s.N, s.K});
  for (const Update update : {Update::kOverwrite, Update::kAdd}) {
    const char* const how = update == Update::kAdd ? "added" : "overwritten";
    for (const DType dx_dtype : {dtype, DType::kF32}) {
      GuardedTensor dx(dx_dtype, {s.T, s.K});
      if (update == Update::kAdd) fill(dx, 5);
      const auto dx_expected = want({dy.view()}, {w.view(), true}, former(dx, update));
      kernels.backward_input(dy.view(), w.view(), dx.view(), update, scratch.span(), pool);
      expect_within(dx, dx_expected, fmt::format("{} backward_input {}", context, how));
    }
    if (update == Update::kAdd) fill(dw, 6);
    const auto dw_expected = want({dy.view(), true}, {x.view(), true}, former(dw, update));
    kernels.backward_weight(dy.view(), x.view(), dw.view(), update, scratch.span(), pool);
    expect_within(dw, dw_expected, fmt::format("{} backward_weight {}", context, how));
  }
}

TEST(Gemm, IntegersAreExactForEveryRemainder) {
  ThreadPool pool(2);
  for (const auto& implementation : different_implementations()) {
    for (const DType dtype : kActivationTypes) {
      for (const Sizes& sizes : all_sizes()) check_products(implementation, dtype, sizes, true, pool);
    }
  }
}

TEST(Gemm, RealsStayWithinTheNormBound) {
  ThreadPool pool(2);
  for (const auto& implementation : different_implementations()) {
    for (const DType dtype : kActivationTypes) {
      for (const Sizes& sizes : {Sizes{1, 33, 65}, Sizes{37, 129, 255}, Sizes{140, 64, 1027},
                                 Sizes{600, 96, 31}, Sizes{1030, 40, 24}}) {
        check_products(implementation, dtype, sizes, false, pool);
      }
    }
  }
}

// Narrow weights of general products: rows and tokens that do and do not fill blocks of four, columns past a
// task, a pass and a tile.
TEST(NarrowGemm, EveryImplementationIsExact) {
  ThreadPool pool(2);
  for (const auto& implementation : narrow_table().usable()) {
    const NarrowKernels& kernels = implementation.kernels;
    for (const DType dtype : kActivationTypes) {
      for (const Sizes s : {Sizes{1, 1, 1}, Sizes{70, 8, 300}, Sizes{33, 6, 67}, Sizes{131, 5, 4109},
                            Sizes{7, kMaxNarrowRows, 31}}) {
        const std::string context =
            fmt::format("{} {} T {} N {} K {}", describe(implementation), dtype_name(dtype), s.T, s.N, s.K);
        GuardedTensor x(dtype, {s.T, s.K}), w(dtype, {s.N, s.K}), dy(dtype, {s.T, s.N});
        fill_integers(x, 1);
        fill_integers(w, 2);
        fill_integers(dy, 4);
        const auto exact = [&](const Factor& a, const Factor& b, const std::vector<double>& former) {
          std::vector<Expected> expected = expected_products(a, b, former);
          for (Expected& element : expected) element.bound = 0;
          return expected;
        };
        for (const DType out_dtype : {dtype, DType::kF32}) {
          GuardedTensor y(out_dtype, {s.T, s.N});
          kernels.forward(x.view(), w.view(), y.view(), pool);
          expect_within(y, exact({x.view()}, {w.view()}, {}), context + " forward");
        }
        for (const Update update : {Update::kOverwrite, Update::kAdd}) {
          GuardedTensor dx(dtype, {s.T, s.K}), dw(DType::kF32, {s.N, s.K});
          if (update == Update::kAdd) fill_integers(dx, 5);
          if (update == Update::kAdd) fill_integers(dw, 6);
          const auto dx_expected = exact({dy.view()}, {w.view(), true}, former(dx, update));
          const auto dw_expected = exact({dy.view(), true}, {x.view(), true}, former(dw, update));
          kernels.backward_input(dy.view(), w.view(), dx.view(), update, pool);
          kernels.backward_weight(dy.view(), x.view(), dw.view(), update, pool);
          expect_within(dx, dx_expected, context + " backward_input");
          expect_within(dw, dw_expected, context + " backward_weight");
        }
      }
    }
  }
}

// Tall products, which the AMX implementation leaves to oneDNN if oneDNN has AMX too.
TEST(Gemm, TallProductsAreExact) {
  ThreadPool pool(2);
  for (const auto& implementation : different_implementations()) {
    check_products(implementation, DType::kBF16, {1030, 40, 24}, true, pool);
  }
}

// 1 + 2^-20 needs 21 significant bits: bf16 (8), tf32 (11) or f16 (11) products would lose the difference.
TEST(Gemm, Float32ProductsAreNotShortened) {
  ThreadPool pool(1);
  for (const auto& implementation : different_implementations()) {
    const TestScratch scratch = scratch_for(implementation.kernels, DType::kF32, pool);
    GuardedTensor x(DType::kF32, {32, 32}), w(DType::kF32, {32, 32}), y(DType::kF32, {32, 32});
    x.fill(0);
    w.fill(0);
    for (int64_t i = 0; i < 32; ++i) {
      x.set(i * 32 + i, 1.0f + 0x1.0p-20f);
      w.set(i * 32 + i, 1.0f);
    }
    implementation.kernels.forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool);
    for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(y[i * 32 + i], 1 + 0x1.0p-20) << describe(implementation);
  }
}

TEST(Gemm, InfinityAndNanPassThrough) {
  ThreadPool pool(1);
  for (const auto& implementation : different_implementations()) {
    for (const DType dtype : kActivationTypes) {
      const TestScratch scratch = scratch_for(implementation.kernels, dtype, pool);
      GuardedTensor x(dtype, {3, 20}), w(dtype, {5, 20}), y(DType::kF32, {3, 5});
      x.fill(1);
      w.fill(1);
      x.set(0 * 20 + 19, HUGE_VALF);
      x.set(1 * 20 + 4, NAN);
      implementation.kernels.forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool);
      EXPECT_EQ(y[0], HUGE_VAL) << describe(implementation);
      EXPECT_TRUE(std::isnan(y[5])) << describe(implementation);
      EXPECT_EQ(y[10], 20) << describe(implementation);
    }
  }
}

TEST(Gemm, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Sizes& s : {Sizes{700, 200, 96}, Sizes{1100, 48, 96}, Sizes{130, 48, 40}, Sizes{513, 700, 500}})
    for (const auto& implementation : different_implementations()) {
      for (const DType dtype : kActivationTypes) {
        const auto run = [&](ThreadPool& pool) {
          const GemmKernels& kernels = implementation.kernels;
          const TestScratch scratch = scratch_for(kernels, dtype, pool);
          GuardedTensor x(dtype, {s.T, s.K}), w(dtype, {s.N, s.K}), dy(dtype, {s.T, s.N});
          x.fill_normal(1);
          w.fill_normal(2);
          dy.fill_normal(3);
          std::vector<GuardedTensor> outputs;
          outputs.emplace_back(dtype, Shape{s.T, s.N});
          outputs.emplace_back(dtype, Shape{s.T, s.K});
          outputs.emplace_back(DType::kF32, Shape{s.N, s.K});
          outputs.emplace_back(DType::kF32, Shape{s.N});
          outputs[2].fill(0.5f);
          kernels.forward(x.view(), w.view(), {}, outputs[0].view(), scratch.span(), pool);
          kernels.backward_input(dy.view(), w.view(), outputs[1].view(), Update::kOverwrite, scratch.span(),
                                 pool);
          kernels.backward_weight(dy.view(), x.view(), outputs[2].view(), Update::kAdd, scratch.span(), pool);
          gemm_backward_bias(dy.view(), outputs[3].view(), Update::kOverwrite, pool);
          return outputs;
        };
        expect_thread_independent(run, fmt::format("{} {}", describe(implementation), dtype_name(dtype)));
      }
    }
}

TEST(AmxBlocks, FillTheShareOfL2ThatAThreadHas) {
  using amx::block_panels;
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(block_panels(2 * kMiB, 1), 16);
  EXPECT_EQ(block_panels(2 * kMiB, 2), 10);
  EXPECT_EQ(block_panels(kMiB, 1), 10) << "half an L2 is like one of half the size";
  for (const int64_t l2_bytes : {kMiB, kMiB + kMiB / 4, 2 * kMiB, 3 * kMiB}) {
    for (const int64_t per_core : {1, 2}) {
      SCOPED_TRACE(testing::Message() << l2_bytes << " bytes, " << per_core << " threads per core");
      const int64_t most = block_panels(l2_bytes, per_core);
      const int64_t chunk_bytes = amx::kMaxChunkSteps * amx::kUnitBytes;
      const int64_t filled_bytes = most * most * amx::kMicroTileBytes + (most + 2) * chunk_bytes;
      if (most > 8) {
        EXPECT_LE(filled_bytes * per_core, l2_bytes / 8 * 7);
      }
      for (const Sizes& s : {Sizes{4096, 11008, 1}, Sizes{512, 512, 1}, Sizes{2048, 320, 1}}) {
        const amx::Blocks blocks = amx::choose_blocks(s.T, s.N, l2_bytes, {16 * per_core, per_core});
        EXPECT_LE(divide_up(blocks.rows, blocks.block_rows), most);
        EXPECT_LE(divide_up(blocks.columns, blocks.block_columns), most);
        EXPECT_EQ(blocks.count() % (16 * per_core), 0) << "as many for each thread";
      }
    }
  }
}

TEST(GemmBackwardBias, SumsTheRowsInFloat32) {
  ThreadPool pool(3);
  for (const DType dtype : kActivationTypes) {
    for (const Sizes& s : {Sizes{1, 1, 1}, Sizes{17, 33, 1}, Sizes{5, 700, 1}}) {
      GuardedTensor dy(dtype, {s.T, s.N}), db(DType::kF32, {s.N});
      dy.fill_normal(1);
      db.fill_normal(2);
      for (const Update update : {Update::kAdd, Update::kOverwrite}) {
        std::vector<Expected> want;
        for (int64_t n = 0; n < s.N; ++n) {
          want.push_back(expected_sum(s.T, update == Update::kAdd ? db[n] : 0,
                                      [&](int64_t t) { return dy[t * s.N + n]; }));
        }
        gemm_backward_bias(dy.view(), db.view(), update, pool);
        expect_within(db, want, fmt::format("{} T {} N {}", dtype_name(dtype), s.T, s.N));
      }
    }
  }
}

TEST(Gemm, NoTokensAddNothing) {
  ThreadPool pool(2);
  GuardedTensor x(DType::kF32, {0, 4}), w(DType::kF32, {3, 4}), y(DType::kF32, {0, 3}),
      dw(DType::kF32, {3, 4});
  w.fill(1);
  dw.fill(7);
  gemm_forward(x.view(), w.view(), {}, y.view(), {}, pool);
  gemm_backward_input(y.view(), w.view(), x.view(), Update::kOverwrite, {}, pool);
  gemm_backward_weight(y.view(), x.view(), dw.view(), Update::kAdd, {}, pool);
  EXPECT_EQ(dw.values(), std::vector<double>(12, 7.0));
  gemm_backward_weight(y.view(), x.view(), dw.view(), Update::kOverwrite, {}, pool);
  EXPECT_EQ(dw.values(), std::vector<double>(12));
  EXPECT_TRUE(x.guards_intact() && y.guards_intact());
}

TEST(Gemm, WrongShapesAndMissingScratchAreBugs) {
  ThreadPool pool(1);
  GuardedTensor x(DType::kF32, {2, 4}), w(DType::kF32, {3, 5}), good_w(DType::kF32, {3, 4}),
      y(DType::kF32, {2, 3});
  GuardedTensor bf16_w(DType::kBF16, {3, 4});
  const TestScratch scratch(gemm_scratch_bytes({2, {3, 4}, DType::kF32, 1}));
  EXPECT_THROW(gemm_forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool), Error);
  EXPECT_THROW(gemm_forward(x.view(), bf16_w.view(), {}, y.view(), scratch.span(), pool), Error);
  EXPECT_THROW(gemm_backward_weight(y.view(), x.view(), w.view(), Update::kAdd, scratch.span(), pool), Error);
  if (!scratch.span().empty()) {
    EXPECT_THROW(gemm_forward(x.view(), good_w.view(), {}, y.view(), {}, pool), Error);
  }
}

TEST(RowSlices, CoverEveryRowOnceInFewSizes) {
  for (const int64_t height : {64, 128, 256, 512}) {
    std::set<int64_t> sizes;
    for (int64_t rows = 0; rows <= 2 * height + 70; ++rows) {
      const RowSlices slices(rows, height);
      int64_t next = 0;
      for (int64_t i = 0; i < slices.count(); ++i) {
        const auto [begin, end] = slices[i];
        ASSERT_EQ(begin, next) << rows << " rows, height " << height << ", slice " << i;
        ASSERT_GT(end, begin);
        sizes.insert(end - begin);
        next = end;
      }
      ASSERT_EQ(next, rows) << "height " << height;
    }
    EXPECT_LE(static_cast<int64_t>(sizes.size()), height / 64 + 9);
  }
}

TEST(OneDnn, MayUseWhatWorksAndWhatItCanSee) {
  constexpr TileInformation kSeen = {.max_palette = 1, .num_registers = 8, .rows = 16, .row_bytes = 64};
  constexpr TileInformation kHidden;
  const OneDnnLimit seen = onednn_limit(Isa::kAmxBf16, kSeen, "");
  EXPECT_EQ(seen.isa, Isa::kAmxBf16);
  EXPECT_EQ(seen.reason, "");
  EXPECT_EQ(onednn_environment(seen), "");
  const OneDnnLimit hidden = onednn_limit(Isa::kAmxBf16, kHidden, "");
  EXPECT_EQ(hidden.isa, Isa::kAvx512Bf16);
  EXPECT_THAT(hidden.reason, testing::HasSubstr("CPUID leaf 1DH"));
  EXPECT_EQ(onednn_environment(hidden), "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16");
  EXPECT_EQ(onednn_limit(Isa::kAvx512Bf16, kHidden, "").reason, "") << "no tiles, nothing to hide";
  for (const auto& [isa, value] : std::map<Isa, std::string>{
           {Isa::kAvx512, "AVX512_CORE"}, {Isa::kAvx2, "AVX2"}, {Isa::kRef, "SSE41"}}) {
    const OneDnnLimit broken = onednn_limit(isa, kHidden, "it is broken");
    EXPECT_EQ(broken.isa, isa);
    EXPECT_EQ(broken.reason, "it is broken");
    EXPECT_EQ(onednn_environment(broken), "ONEDNN_MAX_CPU_ISA=" + value);
  }
}

TEST(OneDnn, RaggedMicroBatchesCompileFewProducts) {
  if (gemm_table().chosen_implementation().name == "ref") GTEST_SKIP() << "oneDNN does not run here";
  ThreadPool pool(1);
  const TestScratch scratch = scratch_for(kGemmOneDnn, DType::kF32, pool);
  const int64_t before = num_onednn_products();
  for (int64_t T = 2; T < 200; ++T) {
    GuardedTensor x(DType::kF32, {T, 6}), w(DType::kF32, {10, 6}), y(DType::kF32, {T, 10});
    kGemmOneDnn.forward(x.view(), w.view(), {}, y.view(), scratch.span(), pool);
  }
  EXPECT_LE(num_onednn_products() - before, 10);
}

// Layers of models from 15 M to 70 B parameters.
TEST(OneDnn, ScratchpadIsLargeEnoughForKnownModels) {
  const auto& chosen = gemm_table().chosen_implementation();
  if (chosen.name == "ref") GTEST_SKIP() << "oneDNN does not run here";
  for (const DType dtype : kActivationTypes) {
    if (dtype == DType::kBF16 && chosen.name != "onednn") continue;
    for (const auto& [N, K] : std::vector<std::pair<int64_t, int64_t>>{{512, 384},
                                                                       {8192, 512},
                                                                       {2048, 2048},
                                                                       {16384, 2048},
                                                                       {6144, 4096},
                                                                       {4096, 14336},
                                                                       {28672, 4096},
                                                                       {128256, 4096},
                                                                       {8192, 28672}}) {
      for (const int64_t rows : {1, 12, 48, 64, 128, 192, 256}) {
        const OneDnnProduct forward = {Layout::kForward, dtype, dtype, true, false, rows, N, K};
        const OneDnnProduct input = {Layout::kInput, dtype, dtype, false, true, rows, K, N};
        const OneDnnProduct weight = {Layout::kWeight, dtype, DType::kF32, false, true, rows, K, 512};
        for (const OneDnnProduct& product : {forward, input, weight}) {
          EXPECT_LE(onednn_scratchpad_bytes(product), kOneDnnScratchpadBytes)
              << dtype_name(dtype) << " layout " << static_cast<int>(product.layout) << " N " << N << " K "
              << K << " rows " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
