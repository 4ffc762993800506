#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/attention/attention_expected.h"
#include "kernels/attention/attention_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

struct Case {
  AttentionShape shape;
  std::vector<int32_t> cu_seqlens;

  int64_t num_tokens() const { return cu_seqlens.back(); }
  std::string describe() const {
    return fmt::format("H {} G {} E {} window {} scale {} cap {} cu_seqlens {}", shape.num_heads,
                       shape.num_key_value_heads, shape.head_dim, shape.sliding_window, shape.scale,
                       shape.softcap, testing::PrintToString(cu_seqlens));
  }
};

Case make_case(int64_t H, int64_t G, int64_t E, std::vector<int32_t> lengths, int64_t window = 0,
               float scale = 0, float softcap = 0) {
  Case result{{H, G, E, window, scale != 0 ? scale : 1 / std::sqrt(static_cast<float>(E)), softcap}, {0}};
  for (const int32_t length : lengths) result.cu_seqlens.push_back(result.cu_seqlens.back() + length);
  return result;
}

// Common and odd head sizes, from one to all key-value heads, lengths around the block of 64 and the task of
// 128, empty sequences, windows shorter and longer than a sequence, scores far above one, soft caps above and
// below them.
std::vector<Case> make_cases() {
  return {
      make_case(2, 1, 16, {1}),
      make_case(2, 2, 1, {1, 2, 1, 3}),
      make_case(3, 3, 5, {7, 0, 17, 0}),
      make_case(4, 2, 64, {63, 64, 65, 1}),
      make_case(2, 1, 80, {127, 130}),
      make_case(1, 1, 96, {129}),
      make_case(6, 2, 32, {5, 200}),
      make_case(2, 1, 128, {66}),
      make_case(2, 1, 33, {70, 20}),
      make_case(2, 1, 16, {193, 9}, 1),
      make_case(2, 1, 16, {193, 9}, 5),
      make_case(2, 2, 8, {260}, 64),
      make_case(2, 1, 16, {200, 30}, 100),
      make_case(2, 1, 16, {90, 30}, 1000),
      make_case(2, 1, 24, {150}, 0, 8),
      make_case(1, 1, 16, {530, 40}),
      make_case(1, 1, 8, {700}, 600),
      make_case(4, 1, 160, {40, 100}),
      make_case(8, 1, 256, {33}),
      make_case(12, 3, 32, {1, 1, 2, 1, 30, 31, 33, 1}),
      make_case(3, 1, 64, {400}, 150),
      make_case(4, 2, 16, {130, 1, 70}, 0, 0.25f, 50),
      make_case(2, 1, 33, {70, 20}, 40, 2, 5),
      make_case(3, 1, 64, {200, 30}, 150, 0.5f, 20),
  };
}

template <typename Implementation>
bool rounds_weights(const Implementation& implementation, DType dtype) {
  return implementation.isa == Isa::kAmxBf16 && dtype == DType::kBF16;
}

// The expectation takes longer than what it checks: wider bounds are computed only where they are needed.
bool any_rounds_weights(DType dtype) {
  const auto usable = attention_table().usable();
  return std::any_of(usable.begin(), usable.end(),
                     [dtype](const auto& implementation) { return rounds_weights(implementation, dtype); });
}

// All tokens and heads.
struct Forward {
  std::vector<Expected> o;    // [T, H E]
  std::vector<Expected> lse;  // [H, T]
};

Forward expected_forward(const Case& c, const GuardedTensor& qkv, const WeightErrors& errors = {}) {
  const int64_t H = c.shape.num_heads, E = c.shape.head_dim;
  Forward expected;
  expected.o.resize(static_cast<size_t>(c.num_tokens() * H * E));
  for (int64_t h = 0; h < H; ++h) {
    const ExpectedAttention head(qkv.view(), c.shape, c.cu_seqlens, h, errors);
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      expected.lse.push_back(head.forward(t, &expected.o[static_cast<size_t>((t * H + h) * E)]));
    }
  }
  return expected;
}

std::vector<Expected> expected_backward(const Case& c, const GuardedTensor& d_o, const GuardedTensor& qkv,
                                        const GuardedTensor& o, const GuardedTensor& lse,
                                        const WeightErrors& errors = {}) {
  const int64_t H = c.shape.num_heads, G = c.shape.num_key_value_heads;
  std::vector<Expected> dqkv(static_cast<size_t>(qkv.num_elements()));
  const auto at = [&](int64_t t, int64_t head) {
    return &dqkv[static_cast<size_t>(t * c.shape.qkv_width() + head * c.shape.head_dim)];
  };
  for (int64_t h = 0; h < H; ++h) {
    const int64_t g = h / (H / G);
    const ExpectedAttentionBackward head(d_o.view(), qkv.view(), o.view(), lse.view(), c.shape, c.cu_seqlens,
                                         h, errors);
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      for (int64_t s = head.first_key(t); s <= t; ++s) {
        head.add_pair(t, s, at(t, h), at(s, H + g), at(s, H + G + g));
      }
    }
  }
  return dqkv;
}

GuardedTensor make_qkv(const Case& c, DType dtype, uint64_t seed = 1) {
  GuardedTensor qkv(dtype, {c.num_tokens(), c.shape.qkv_width()});
  qkv.fill_normal(seed);
  return qkv;
}
Shape o_shape(const Case& c) { return {c.num_tokens(), c.shape.num_heads * c.shape.head_dim}; }
Shape lse_shape(const Case& c) { return {c.shape.num_heads, c.num_tokens()}; }
TestScratch make_scratch(const Case& c, const ThreadPool& pool) {
  return TestScratch(attention_scratch_bytes(c.shape, c.num_tokens(), pool));
}

TEST(AttentionFormula, GradientsAgreeWithDifferences) {
  for (const auto& [window, softcap] : {std::pair(0, 0.0f), std::pair(2, 0.0f), std::pair(0, 1.5f)}) {
    const Case c = make_case(2, 1, 3, {1, 4}, window, 0.7f, softcap);
    GuardedTensor qkv = make_qkv(c, DType::kF32), d_o(DType::kF32, o_shape(c));
    d_o.fill_normal(2);
    const Forward forward = expected_forward(c, qkv);
    const std::vector<Expected> dqkv =
        expected_backward(c, d_o, qkv, rounded(forward.o, DType::kF32, o_shape(c)),
                          rounded(forward.lse, DType::kF32, lse_shape(c)));
    const auto loss = [&](const GuardedTensor& at) {
      const std::vector<Expected> o = expected_forward(c, at).o;
      double sum = 0;
      for (int64_t i = 0; i < d_o.num_elements(); ++i) sum += d_o[i] * o[static_cast<size_t>(i)].value;
      return sum;
    };
    for (int64_t i = 0; i < qkv.num_elements(); ++i) {
      const double x = qkv[i];
      GuardedTensor up = qkv, down = qkv;
      up.set(i, static_cast<float>(x + 0x1.0p-10));
      down.set(i, static_cast<float>(x - 0x1.0p-10));
      // Second-order differences: an error of about h^2 = 1e-6 times a third derivative of order one.
      EXPECT_NEAR((loss(up) - loss(down)) / (up[i] - down[i]), dqkv[static_cast<size_t>(i)].value, 5e-6)
          << "window " << window << " cap " << softcap << " index " << i;
    }
  }
}

TEST(AttentionForward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const Case& c : make_cases()) {
    for (const DType dtype : kActivationTypes) {
      const GuardedTensor qkv = make_qkv(c, dtype);
      const Forward exact = expected_forward(c, qkv);
      std::optional<Forward> rounding;
      if (any_rounds_weights(dtype)) rounding = expected_forward(c, qkv, kAmxErrors);
      for (const auto& implementation : attention_table().usable()) {
        const Forward& expected = rounds_weights(implementation, dtype) ? *rounding : exact;
        GuardedTensor o(dtype, o_shape(c)), lse(DType::kF32, lse_shape(c));
        const std::string context =
            fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe());
        const TestScratch scratch = make_scratch(c, pool);
        implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, o.view(), lse.view(),
                                       scratch.span(), pool);
        expect_within(o, expected.o, context);
        expect_within(lse, expected.lse, context + " lse");
        GuardedTensor without_lse(dtype, o_shape(c));
        implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, without_lse.view(), {},
                                       scratch.span(), pool);
        EXPECT_TRUE(without_lse.bits() == o.bits()) << context << ": differs without lse";
      }
    }
  }
}

TEST(AttentionBackward, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const Case& c : make_cases()) {
    for (const DType dtype : kActivationTypes) {
      const GuardedTensor qkv = make_qkv(c, dtype);
      GuardedTensor d_o(dtype, o_shape(c));
      d_o.fill_normal(2);
      const Forward forward = expected_forward(c, qkv);
      const GuardedTensor o = rounded(forward.o, dtype, o_shape(c));
      const GuardedTensor lse = rounded(forward.lse, DType::kF32, lse_shape(c));
      const std::vector<Expected> exact = expected_backward(c, d_o, qkv, o, lse);
      std::optional<std::vector<Expected>> rounding;
      if (any_rounds_weights(dtype)) rounding = expected_backward(c, d_o, qkv, o, lse, kAmxErrors);
      for (const auto& implementation : attention_table().usable()) {
        const std::vector<Expected>& expected = rounds_weights(implementation, dtype) ? *rounding : exact;
        GuardedTensor dqkv(dtype, {c.num_tokens(), c.shape.qkv_width()});
        const TestScratch scratch = make_scratch(c, pool);
        implementation.kernels.backward(d_o.view(), qkv.view(), o.view(), lse.view(), c.shape, c.cu_seqlens,
                                        dqkv.view(), scratch.span(), pool);
        expect_within(dqkv, expected,
                      fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe()));
      }
    }
  }
}

// A query with a single key (the first of a sequence; with a window of 1, every query) gives it weight 1
// whatever q and k are.
TEST(AttentionBackward, QueriesWithOneKeyGiveQueriesAndKeysNoGradientAtAll) {
  ThreadPool pool(2);
  for (const Case& c : {make_case(2, 1, 16, {1, 70, 2, 1, 40}), make_case(4, 2, 64, {33, 130}, 1),
                        make_case(2, 1, 128, {300, 5}), make_case(3, 3, 5, {7, 0, 17}, 1)}) {
    for (const DType dtype : kActivationTypes) {
      const GuardedTensor qkv = make_qkv(c, dtype);
      GuardedTensor d_o(dtype, o_shape(c));
      d_o.fill_normal(2);
      const int64_t width = c.shape.num_heads * c.shape.head_dim;
      for (int64_t t = 0; c.shape.sliding_window != 1 && t < c.num_tokens(); ++t) {
        if (std::ranges::find(c.cu_seqlens, t) != c.cu_seqlens.end()) continue;
        for (int64_t i = 0; i < width; ++i) d_o.set(t * width + i, 0);
      }
      for (const auto& implementation : attention_table().usable()) {
        SCOPED_TRACE(fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe()));
        GuardedTensor o(dtype, o_shape(c)), lse(DType::kF32, lse_shape(c)), dqkv(dtype, qkv.shape());
        const TestScratch scratch = make_scratch(c, pool);
        implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, o.view(), lse.view(),
                                       scratch.span(), pool);
        implementation.kernels.backward(d_o.view(), qkv.view(), o.view(), lse.view(), c.shape, c.cu_seqlens,
                                        dqkv.view(), scratch.span(), pool);
        const int64_t num_values = c.shape.num_key_value_heads * c.shape.head_dim;
        int64_t num_gradients = 0, num_of_values = 0;
        for (int64_t i = 0; i < dqkv.num_elements(); ++i) {
          const bool is_value = i % c.shape.qkv_width() >= c.shape.qkv_width() - num_values;
          (is_value ? num_of_values : num_gradients) += dqkv[i] != 0 ? 1 : 0;
        }
        EXPECT_EQ(num_gradients, 0);
        EXPECT_GT(num_of_values, 0);
      }
    }
  }
}

// Sums that start from the score of a row's own key exceed every limit: the maximum must take over.
TEST(AttentionForward, HoldsWhereAnotherKeyScoresFarAboveTheOwn) {
  ThreadPool pool(2);
  const Case c = make_case(2, 1, 32, {700}, 0, 1);
  GuardedTensor qkv = make_qkv(c, DType::kBF16);
  const int64_t width = c.shape.qkv_width();
  for (int64_t t = 0; t < 700; ++t) {
    // q . k is 120 with the key of token 3, 200 with that of token 600, 0 with all others.
    for (int64_t i = 0; i < 64; ++i) qkv.set(t * width + i, i % 32 == 0 ? 10.0f : 0.0f);
    for (int64_t i = 64; i < 96; ++i) qkv.set(t * width + i, 0);
  }
  qkv.set(3 * width + 64, 12);
  qkv.set(600 * width + 64, 20);
  const Forward exact = expected_forward(c, qkv), rounding = expected_forward(c, qkv, kAmxErrors);
  for (const auto& implementation : attention_table().usable()) {
    const Forward& expected = rounds_weights(implementation, DType::kBF16) ? rounding : exact;
    GuardedTensor o(DType::kBF16, o_shape(c)), lse(DType::kF32, lse_shape(c));
    const TestScratch scratch = make_scratch(c, pool);
    implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, o.view(), lse.view(), scratch.span(),
                                   pool);
    expect_within(o, expected.o, describe(implementation));
    expect_within(lse, expected.lse, describe(implementation) + " lse");
  }
}

TEST(Attention, TokensSeeNeitherTheFutureNorOtherSequences) {
  ThreadPool pool(2);
  const Case c = make_case(2, 1, 16, {70, 140, 30});
  const int64_t width = c.shape.num_heads * c.shape.head_dim;
  for (const auto& implementation : attention_table().usable()) {
    GuardedTensor qkv = make_qkv(c, DType::kF32);
    GuardedTensor before(DType::kF32, o_shape(c)), after(DType::kF32, o_shape(c));
    const TestScratch scratch = make_scratch(c, pool);
    const auto run = [&](GuardedTensor* o) {
      implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, o->view(), {}, scratch.span(), pool);
    };
    run(&before);
    const int64_t changed = 150;  // token 80 of the second sequence
    for (int64_t i = 0; i < c.shape.qkv_width(); ++i) qkv.set(changed * c.shape.qkv_width() + i, 5);
    run(&after);
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      bool same = true;
      for (int64_t i = 0; i < width; ++i) same = same && before[t * width + i] == after[t * width + i];
      EXPECT_EQ(same, t < changed || t >= 210) << describe(implementation) << " token " << t;
    }
  }
}

TEST(Attention, NotANumberReachesTheOutputsThatSeeIt) {
  ThreadPool pool(1);
  const Case c = make_case(1, 1, 16, {100});
  for (const auto& implementation : attention_table().usable()) {
    GuardedTensor qkv = make_qkv(c, DType::kF32), o(DType::kF32, o_shape(c));
    qkv.set(20 * c.shape.qkv_width() + 16, std::numeric_limits<float>::quiet_NaN());  // the key of token 20
    const TestScratch scratch = make_scratch(c, pool);
    implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, o.view(), {}, scratch.span(), pool);
    for (int64_t t = 0; t < 100; ++t) {
      EXPECT_EQ(std::isnan(o[t * 16]), t >= 20) << describe(implementation) << " token " << t;
    }
  }
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  const Case cases[] = {make_case(4, 2, 20, {150, 3, 70}, 90), make_case(2, 1, 32, {300, 1, 1100}),
                        make_case(2, 1, 16, {700}, 290)};
  for (const Case& c : cases) {
    for (const DType dtype : kActivationTypes) {
      const GuardedTensor qkv = make_qkv(c, dtype);
      GuardedTensor d_o(dtype, o_shape(c));
      d_o.fill_normal(2);
      for (const auto& implementation : attention_table().usable()) {
        if (implementation.isa == Isa::kRef && c.num_tokens() > 300) continue;  // quadratic in doubles
        expect_thread_independent(
            [&](ThreadPool& pool) {
              std::vector<GuardedTensor> out;
              out.emplace_back(dtype, o_shape(c));
              out.emplace_back(DType::kF32, lse_shape(c));
              out.emplace_back(dtype, qkv.shape());
              const TestScratch scratch = make_scratch(c, pool);
              implementation.kernels.forward(qkv.view(), c.shape, c.cu_seqlens, out[0].view(), out[1].view(),
                                             scratch.span(), pool);
              implementation.kernels.backward(d_o.view(), qkv.view(), out[0].view(), out[1].view(), c.shape,
                                              c.cu_seqlens, out[2].view(), scratch.span(), pool);
              return out;
            },
            fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe()));
      }
    }
  }
}

TEST(AttentionCached, PiecesOfASequenceMatchTheWhole) {
  ThreadPool pool(2);
  for (const Case& c : {make_case(4, 2, 64, {200}), make_case(2, 1, 17, {180}),
                        make_case(3, 1, 16, {190}, 70), make_case(4, 2, 32, {100}, 60, 0.3f, 10)}) {
    for (const DType dtype : kActivationTypes) {
      const GuardedTensor qkv = make_qkv(c, dtype);
      const Forward expected = expected_forward(c, qkv);
      const int64_t T = c.num_tokens(), cache_width = c.shape.num_key_value_heads * c.shape.head_dim;
      for (const auto& implementation : attention_table().usable()) {
        const std::string context =
            fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe());
        GuardedTensor k_cache(dtype, {T + 3, cache_width}), v_cache(dtype, {T + 3, cache_width});
        GuardedTensor o(dtype, o_shape(c));
        const TestScratch scratch = make_scratch(c, pool);
        // One token, a few, around the size from which blocks are used, and more than a block.
        const int64_t pieces[] = {1, 3, 7, 8, 9, 70, 1, T};
        int64_t length = 0;
        for (const int64_t piece : pieces) {
          const int64_t end = std::min(T, length + piece);
          implementation.kernels.cached(qkv.view().rows(length, end), c.shape, k_cache.view(), v_cache.view(),
                                        length, /*sinks_H=*/{}, o.view().rows(length, end), scratch.span(),
                                        pool);
          length = end;
        }
        ASSERT_EQ(length, T);
        expect_within(o, expected.o, context);
        EXPECT_TRUE(k_cache.guards_intact() && v_cache.guards_intact()) << context;
        for (int64_t t = 0; t < T + 3; ++t) {
          for (int64_t i = 0; i < cache_width; ++i) {
            const int64_t k_at = t * c.shape.qkv_width() + c.shape.num_heads * c.shape.head_dim + i;
            const double k = k_cache[t * cache_width + i], v = v_cache[t * cache_width + i];
            if (t < T) {
              ASSERT_TRUE(k == qkv[k_at] && v == qkv[k_at + cache_width]) << context << " cache row " << t;
            } else {
              ASSERT_TRUE(std::isnan(k) && std::isnan(v)) << context << " cache row " << t << " was written";
            }
          }
        }
      }
    }
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const Case c = make_case(2, 1, 4, {3});
  GuardedTensor qkv = make_qkv(c, DType::kF32), o(DType::kF32, o_shape(c));
  const TestScratch scratch = make_scratch(c, pool);
  const auto run = [&](const AttentionShape& shape, std::vector<int32_t> cu_seqlens,
                       std::span<std::byte> memory) {
    attention(qkv.view(), shape, cu_seqlens, o.view(), {}, memory, pool);
  };
  EXPECT_NO_THROW(run(c.shape, {0, 1, 3}, scratch.span()));
  EXPECT_THROW(run(c.shape, {0, 2}, scratch.span()), Error);
  EXPECT_THROW(run(c.shape, {0, 4, 3}, scratch.span()), Error);
  EXPECT_THROW(run(c.shape, {}, scratch.span()), Error);
  EXPECT_THROW(run(c.shape, {0, 3}, {}), Error);
  AttentionShape uneven = c.shape;
  uneven.num_key_value_heads = 3;
  EXPECT_THROW(run(uneven, {0, 3}, scratch.span()), Error);
  GuardedTensor cache(DType::kF32, {3, 4});
  EXPECT_THROW(attention_cached(qkv.view(), c.shape, cache.view(), cache.view(), 1, /*sinks_H=*/{}, o.view(),
                                scratch.span(), pool),
               Error);
  GuardedTensor cache_of_all(DType::kF32, {4, 4}), too_many(DType::kF32, {3});
  EXPECT_THROW(attention_cached(qkv.view(), c.shape, cache_of_all.view(), cache_of_all.view(), 1,
                                too_many.view(), o.view(), scratch.span(), pool),
               Error);
}

}  // namespace
}  // namespace tessera
