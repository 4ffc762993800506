#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/attention/attention_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

// Queries and keys of their own lengths, or the same fused rows for both.
struct GeneralCase {
  AttentionShape shape;
  std::vector<int32_t> queries, keys;  // lengths; no keys: queries see themselves
  bool causal = false;
  int64_t num_buckets = 0;  // of a position bias
  float dropout = 0;
  bool has_sinks = false;

  bool is_fused() const { return keys.empty(); }
  std::string describe() const {
    return fmt::format("H {} G {} E {} window {} queries {} keys {} causal {} buckets {} dropout {} sinks {}",
                       shape.num_heads, shape.num_key_value_heads, shape.head_dim, shape.sliding_window,
                       testing::PrintToString(queries), testing::PrintToString(keys), causal, num_buckets,
                       dropout, has_sinks);
  }
};

std::vector<int32_t> starts_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> starts = {0};
  for (const int32_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

// The tensors of one case and the calls on them.
class GeneralRun {
 public:
  GeneralRun(const GeneralCase& c, DType dtype)
      : c_(c),
        cu_queries_(starts_of(c.queries)),
        cu_keys_(c.is_fused() ? cu_queries_ : starts_of(c.keys)),
        q_(dtype, {cu_queries_.back(), c.is_fused() ? c.shape.qkv_width() : q_width()}),
        kv_(dtype, {cu_keys_.back(), 2 * kv_width()}),
        table_(dtype, {std::max<int64_t>(1, c.num_buckets), c.shape.num_heads}),
        sinks_(dtype, {c.shape.num_heads}),
        d_o_(dtype, {cu_queries_.back(), q_width()}) {
    q_.fill_normal(1);
    kv_.fill_normal(2);
    table_.fill_normal(3);
    d_o_.fill_normal(4);
    sinks_.fill_normal(5, 2);
    // Distances from -zero to zero; those beyond have the buckets of the ends.
    const int64_t zero = 2 * c.num_buckets;
    for (int64_t i = 0; i <= 2 * zero; ++i)
      buckets_.push_back(static_cast<int32_t>((i * 7 + i / 5) % std::max<int64_t>(1, c.num_buckets)));
    bias_ = {table_.view(), buckets_, zero};
    for (int64_t t = 0; t < cu_queries_.back(); ++t)
      tokens_.push_back(0x3'0000'0000u * static_cast<uint64_t>(t + 5));
    dropout_ = {c.dropout, 0x1234'5678'9ABC, tokens_};
  }

  GuardedTensor& q() { return q_; }
  GuardedTensor& kv() { return c_.is_fused() ? q_ : kv_; }
  GuardedTensor& table() { return table_; }
  GuardedTensor& sinks() { return sinks_; }
  const GuardedTensor& d_o() const { return d_o_; }

  AttentionInputs inputs() {
    AttentionInputs inputs = {.q_rows = q_.view(),
                              .kv_rows = kv().view(),
                              .q_column = 0,
                              .k_column = c_.is_fused() ? q_width() : 0,
                              .v_column = c_.is_fused() ? q_width() + kv_width() : kv_width(),
                              .cu_queries = cu_queries_,
                              .cu_keys = cu_keys_,
                              .causal = c_.causal};
    if (c_.num_buckets > 0) inputs.bias = &bias_;
    if (c_.dropout > 0) inputs.dropout = &dropout_;
    if (c_.has_sinks) inputs.sinks_H = sinks_.view();
    return inputs;
  }

  struct Result {
    GuardedTensor o, lse, dq, dkv, dtable, dsinks;
  };
  // Forward, then backward from its results or from those of another run.
  Result run(const AttentionKernels& kernels, ThreadPool& pool, Update update = Update::kOverwrite,
             const Result* forward = nullptr) {
    const int64_t T = cu_queries_.back(), S = cu_keys_.back();
    Result result = {{q_.dtype(), {T, q_width()}},  {DType::kF32, {c_.shape.num_heads, T}},
                     {q_.dtype(), q_.shape()},      {q_.dtype(), kv_.shape()},
                     {DType::kF32, table_.shape()}, {DType::kF32, sinks_.shape()}};
    if (update == Update::kAdd) result.dtable.fill(0.5f);
    if (update == Update::kAdd) result.dsinks.fill(0.25f);
    const TestScratch scratch(
        general_attention_scratch_bytes(c_.shape, std::max(T, S), c_.num_buckets, pool));
    kernels.general_forward(inputs(), c_.shape, result.o.view(), result.lse.view(), scratch.span(), pool);
    const GuardedTensor& o = forward != nullptr ? forward->o : result.o;
    const GuardedTensor& lse = forward != nullptr ? forward->lse : result.lse;
    kernels.general_backward(d_o_.view(), inputs(), o.view(), lse.view(), c_.shape,
                             {.dq_rows = result.dq.view(),
                              .dkv_rows = c_.is_fused() ? result.dq.view() : result.dkv.view(),
                              .dtable_BH = c_.num_buckets > 0 ? result.dtable.view() : TensorView(),
                              .table_update = update,
                              .dsinks_H = c_.has_sinks ? result.dsinks.view() : TensorView(),
                              .sinks_update = update},
                             scratch.span(), pool);
    return result;
  }

 private:
  int64_t q_width() const { return c_.shape.num_heads * c_.shape.head_dim; }
  int64_t kv_width() const { return c_.shape.num_key_value_heads * c_.shape.head_dim; }

  GeneralCase c_;
  std::vector<int32_t> cu_queries_, cu_keys_, buckets_;
  GuardedTensor q_, kv_, table_, sinks_, d_o_;
  PositionBias bias_;
  std::vector<uint64_t> tokens_;
  Dropout dropout_;
};

const AttentionKernels& reference() {
  static const AttentionKernels kernels = attention_ref().front().kernels;
  return kernels;
}

AttentionShape shape_of(int64_t H, int64_t G, int64_t E, int64_t window = 0) {
  return {H, G, E, window, 1 / std::sqrt(static_cast<float>(E))};
}

double loss_of(GeneralRun& run, ThreadPool& pool) {
  const GuardedTensor o = run.run(reference(), pool).o;
  double sum = 0;
  for (int64_t i = 0; i < o.num_elements(); ++i) sum += o[i] * run.d_o()[i];
  return sum;
}

TEST(GeneralAttentionReference, GradientsAgreeWithDifferences) {
  ThreadPool pool(1);
  for (const GeneralCase& c :
       {GeneralCase{shape_of(2, 1, 3), {2, 3}, {4, 1}}, GeneralCase{shape_of(2, 2, 2), {5, 1}, {}, false, 3},
        GeneralCase{shape_of(2, 2, 2, 2), {5}, {}, false, 3},
        GeneralCase{shape_of(2, 1, 2), {5, 2}, {}, true, 3},
        GeneralCase{{2, 1, 3, 0, 0.7f, 1.5f}, {2, 3}, {4, 1}},
        GeneralCase{shape_of(2, 1, 3), {2, 3}, {4, 1}, false, 0, 0.4f},
        GeneralCase{shape_of(2, 2, 2), {5, 2}, {}, false, 3, 0.3f},
        GeneralCase{{2, 1, 3, 0, 0.7f, 1.5f}, {4, 3}, {}, true, 0, 0.4f},
        GeneralCase{shape_of(2, 1, 3, 2), {4, 1}, {}, true, 0, 0, true},
        GeneralCase{{2, 2, 2, 0, 0.7f, 1.5f}, {3}, {}, false, 3, 0, true}}) {
    GeneralRun run(c, DType::kF32);
    const GeneralRun::Result result = run.run(reference(), pool);
    const auto check = [&](GuardedTensor& at, const GuardedTensor& gradient) {
      for (int64_t i = 0; i < at.num_elements(); ++i) {
        const auto x = static_cast<float>(at[i]);
        at.set(i, x + 0x1.0p-6f);
        const double up = loss_of(run, pool);
        at.set(i, x - 0x1.0p-6f);
        const double down = loss_of(run, pool);
        at.set(i, x);
        // Differences of float32 results: 1e-6 of their size over the step, and the step's square.
        EXPECT_NEAR((up - down) / 0x1.0p-5, gradient[i], 2e-3) << c.describe() << " index " << i;
      }
    };
    check(run.q(), result.dq);
    if (!c.is_fused()) check(run.kv(), result.dkv);
    if (c.num_buckets > 0) check(run.table(), result.dtable);
    if (c.has_sinks) check(run.sinks(), result.dsinks);
  }
}

TEST(GeneralAttentionReference, IsAttentionWhereItIsCausalInsideSequences) {
  ThreadPool pool(2);
  const GeneralCase c = {shape_of(4, 2, 16, 9), {30, 1, 17}, {}, true};
  GeneralRun run(c, DType::kF32);
  const GeneralRun::Result result = run.run(reference(), pool);
  const std::vector<int32_t> starts = starts_of(c.queries);
  GuardedTensor o(DType::kF32, result.o.shape()), lse(DType::kF32, result.lse.shape()),
      dqkv(DType::kF32, result.dq.shape());
  const TestScratch scratch(attention_scratch_bytes(c.shape, starts.back(), pool));
  reference().forward(run.q().view(), c.shape, starts, o.view(), lse.view(), scratch.span(), pool);
  reference().backward(run.d_o().view(), run.q().view(), o.view(), lse.view(), c.shape, starts, dqkv.view(),
                       scratch.span(), pool);
  for (int64_t i = 0; i < o.num_elements(); ++i) EXPECT_NEAR(o[i], result.o[i], 1e-6);
  for (int64_t i = 0; i < dqkv.num_elements(); ++i) EXPECT_NEAR(dqkv[i], result.dq[i], 1e-5);
}

// Lengths around the blocks of 64 and the tasks of 128, drawn at random with the other settings.
std::vector<GeneralCase> drawn_general_cases() {
  std::vector<GeneralCase> cases = {
      {shape_of(2, 2, 8), {1}, {1}},
      {shape_of(2, 1, 33), {64, 65, 1}, {129, 1, 200}},
      {shape_of(3, 3, 64), {200, 63}, {}, false, 32},
      {shape_of(2, 2, 16), {300, 7}, {}, true, 8},
      {shape_of(4, 2, 16, 65), {260, 1, 30}, {}},
      {shape_of(2, 2, 16, 1), {70}, {}},
      {shape_of(2, 2, 8), {1, 3}, {1, 2}, false, 0, 0.3f},
      {shape_of(3, 3, 64), {200, 63}, {}, false, 32, 0.1f},
      {shape_of(4, 2, 16, 65), {260, 1, 30}, {}, true, 0, 0.5f},
      {shape_of(2, 1, 33), {64, 65, 1}, {129, 1, 200}, false, 0, 0.1f},
      {{2, 1, 16, 0, 0.25f, 1.5f}, {150, 20}, {}, true, 0, 0.3f},
      {shape_of(4, 2, 16), {300, 1, 7}, {}, true, 0, 0, true},
      {shape_of(2, 1, 24, 65), {130, 30}, {}, true, 0, 0, true},
      {shape_of(2, 2, 8, 1), {70}, {}, true, 0, 0, true},
  };
  const CounterRng rng(11, 0);
  uint64_t drawn = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng.uniform(drawn++) * static_cast<double>(high - low + 1));
  };
  for (int i = 0; i < 8; ++i) {
    const int64_t G = draw(1, 3);
    GeneralCase c = {shape_of(G * draw(1, 2), G, draw(1, 70), draw(0, 1) * draw(1, 150)), {}, {}};
    const bool is_cross = draw(0, 1) == 1;
    for (int64_t n = draw(1, 4); n > 0; --n) {
      c.queries.push_back(static_cast<int32_t>(draw(1, 190)));
      if (is_cross) c.keys.push_back(static_cast<int32_t>(draw(1, 190)));
    }
    if (is_cross) c.shape.sliding_window = 0;
    c.causal = !is_cross && draw(0, 1) == 1;
    if (!is_cross && draw(0, 1) == 1) c.num_buckets = draw(1, 40);
    if (draw(0, 1) == 1) c.dropout = 0.1f;
    c.has_sinks = draw(0, 1) == 1;
    cases.push_back(c);
  }
  return cases;
}

// bf16 results differ by their rounding alone: the reference starts from the same rounded inputs. Float32
// ones are sums of some hundred terms, smaller than the largest result.
void expect_like(const GuardedTensor& found, const GuardedTensor& expected, const std::string& context) {
  double largest = 0;
  for (int64_t i = 0; i < expected.num_elements(); ++i) largest = std::max(largest, std::abs(expected[i]));
  const double share = found.dtype() == DType::kBF16 ? 0x1.0p-7 : 2e-5;
  for (int64_t i = 0; i < found.num_elements(); ++i) {
    ASSERT_NEAR(found[i], expected[i], share * (std::abs(expected[i]) + 0.05 * largest) + 1e-6)
        << context << " index " << i;
  }
  EXPECT_TRUE(found.guards_intact()) << context;
}

TEST(GeneralAttention, MatchesTheReferenceInEveryImplementation) {
  ThreadPool pool(2);
  for (const GeneralCase& c : drawn_general_cases()) {
    for (const DType dtype : kActivationTypes) {
      GeneralRun run(c, dtype);
      const GeneralRun::Result expected = run.run(reference(), pool, Update::kAdd);
      for (const auto& implementation : attention_table().usable()) {
        const std::string context =
            fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), c.describe());
        const GeneralRun::Result found = run.run(implementation.kernels, pool, Update::kAdd, &expected);
        expect_like(found.o, expected.o, context + " o");
        expect_like(found.lse, expected.lse, context + " lse");
        expect_like(found.dq, expected.dq, context + " dq");
        if (!c.is_fused()) expect_like(found.dkv, expected.dkv, context + " dkv");
        if (c.num_buckets > 0) expect_like(found.dtable, expected.dtable, context + " dtable");
        if (c.has_sinks) expect_like(found.dsinks, expected.dsinks, context + " dsinks");
      }
    }
  }
}

TEST(GeneralAttention, DoesNotDependOnTheNumberOfThreads) {
  for (const GeneralCase& c : {GeneralCase{shape_of(2, 1, 20), {150, 3}, {70, 300}},
                               GeneralCase{shape_of(3, 3, 16), {400, 9, 130}, {}, false, 12},
                               GeneralCase{shape_of(2, 2, 16), {150, 30}, {}, false, 12, 0.1f},
                               GeneralCase{shape_of(2, 1, 16), {400, 9, 130}, {}, true, 0, 0, true}}) {
    for (const auto& implementation : attention_table().usable()) {
      expect_thread_independent(
          [&](ThreadPool& pool) {
            GeneralRun::Result result = GeneralRun(c, DType::kF32).run(implementation.kernels, pool);
            std::vector<GuardedTensor> out = {result.o, result.lse, result.dq};
            out.push_back(c.has_sinks ? result.dsinks : c.is_fused() ? result.dtable : result.dkv);
            return out;
          },
          fmt::format("{} {}", describe(implementation), c.describe()));
    }
  }
}

TEST(GeneralAttention, QueriesOfOneKeyGiveNoGradientOfScores) {
  ThreadPool pool(1);
  const GeneralCase c = {shape_of(2, 2, 16), {40, 90}, {1, 1}};
  for (const auto& implementation : attention_table().usable()) {
    const GeneralRun::Result result = GeneralRun(c, DType::kF32).run(implementation.kernels, pool);
    for (int64_t i = 0; i < result.dq.num_elements(); ++i)
      ASSERT_EQ(result.dq[i], 0) << describe(implementation);
  }
}

// With values of one, the output of a query is the sum of the weights that are kept.
TEST(GeneralAttention, DropsTheExpectedShareOfTheWeights) {
  ThreadPool pool(2);
  const GeneralCase c = {shape_of(4, 4, 8), {300}, {300}, false, 0, 0.2f};
  for (const auto& implementation : attention_table().usable()) {
    GeneralRun run(c, DType::kF32);
    run.q().fill(0);  // all weights are equal
    run.kv().fill(1);
    const GeneralRun::Result result = run.run(implementation.kernels, pool);
    double sum = 0, squares = 0;
    for (int64_t t = 0; t < 300; ++t) {
      for (int64_t h = 0; h < 4; ++h) {
        const double kept = result.o[(t * 4 + h) * 8];
        sum += kept;
        squares += (kept - 1) * (kept - 1);
      }
    }
    // Each is the mean of 300 factors of variance p / (1 - p) = 1/4, and they are independent.
    const double n = 4 * 300, variance = 0.25 / 300;
    EXPECT_NEAR(sum / n, 1, 5 * std::sqrt(variance / n)) << describe(implementation);
    EXPECT_NEAR(squares / n, variance, 5 * variance * std::sqrt(2 / n)) << describe(implementation);
  }
}

// One query and one key of equal logits: half of the weight is the sink's.
TEST(GeneralAttention, ASinkTakesItsShareOfTheWeight) {
  ThreadPool pool(1);
  const GeneralCase c = {shape_of(2, 2, 16), {1}, {}, true, 0, 0, true};
  for (const auto& implementation : attention_table().usable()) {
    GeneralRun run(c, DType::kF32);
    for (int64_t i = 0; i < 32; ++i) run.q().set(i, 0);
    run.sinks().set(0, 0);
    run.sinks().set(1, -1000);
    const GeneralRun::Result result = run.run(implementation.kernels, pool);
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_NEAR(result.o[i], (i < 16 ? 0.5 : 1) * run.q()[64 + i], 1e-6) << describe(implementation);
    EXPECT_NEAR(result.lse[0], std::log(2.0), 1e-6) << describe(implementation);
    EXPECT_EQ(result.dsinks[1], 0) << describe(implementation);
  }
}

// Generation from a cache sees what a whole row sees.
TEST(GeneralAttention, CachedTokensHaveSinksToo) {
  ThreadPool pool(2);
  const GeneralCase c = {shape_of(4, 2, 20, 30), {75}, {}, true, 0, 0, true};
  for (const DType dtype : kActivationTypes) {
    GeneralRun run(c, dtype);
    const GuardedTensor expected = run.run(reference(), pool).o;
    for (const auto& implementation : attention_table().usable()) {
      GuardedTensor o(dtype, {75, 80}), k(dtype, {75, 40}), v(dtype, {75, 40});
      const TestScratch scratch(attention_scratch_bytes(c.shape, 75, pool));
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 40}, {40, 41}, {41, 44}, {44, 75}}) {
        implementation.kernels.cached(run.q().view().rows(begin, end), c.shape, k.view(), v.view(), begin,
                                      run.sinks().view(), o.view().rows(begin, end), scratch.span(), pool);
      }
      expect_like(o, expected, fmt::format("{} {}", describe(implementation), dtype_name(dtype)));
    }
  }
}

TEST(GeneralAttention, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const GeneralCase c = {shape_of(2, 1, 4), {3, 2}, {2, 5}};
  GeneralRun run(c, DType::kF32);
  GuardedTensor o(DType::kF32, {5, 8});
  const TestScratch scratch(general_attention_scratch_bytes(c.shape, 7, 0, pool));
  const auto call = [&](const AttentionInputs& inputs) {
    general_attention(inputs, c.shape, o.view(), {}, scratch.span(), pool);
  };
  EXPECT_NO_THROW(call(run.inputs()));
  AttentionInputs other = run.inputs();
  other.causal = true;  // more queries than keys
  EXPECT_THROW(call(other), Error);
  other = run.inputs();
  other.v_column = 5;
  EXPECT_THROW(call(other), Error);
  const std::vector<uint64_t> too_few(4);
  const Dropout dropout = {0.1f, 0, too_few};
  other = run.inputs();
  other.dropout = &dropout;
  EXPECT_THROW(call(other), Error);
  const std::vector<int32_t> without_keys = {0, 0, 7};
  other = run.inputs();
  other.cu_keys = without_keys;
  EXPECT_THROW(call(other), Error);
}

}  // namespace
}  // namespace tessera
