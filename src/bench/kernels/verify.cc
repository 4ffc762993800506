#include "bench/kernels/verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/attention/attention_expected.h"

namespace tessera {

void Verifier::compare(const char* tensor, int64_t row, int64_t column, double got, double expected,
                       double bound) {
  const double error = std::abs(got - expected);
  if (!(error <= bound)) {
    fail(ExitCode::kInternal, "{}: {}[{}, {}] is {}, expected {} within {}: the kernel is wrong", what_,
         tensor, row, column, got, expected, bound);
  }
  ++result_.num_checked;
  if (bound > 0) result_.worst_error = std::max(result_.worst_error, error / bound);
}

void Verifier::compare_rows(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                            std::span<const Expected> expected) {
  compare_values(tensor, got, rows, range(0, row_width(got)), expected);
}

void Verifier::compare_values(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                              std::span<const int64_t> columns, std::span<const Expected> expected) {
  const std::vector<double> values = values_at(got, rows, columns);
  TESSERA_CHECK(values.size() == expected.size(), "{} values of {}, {} expected", values.size(), tensor,
                expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    compare(tensor, rows[i / columns.size()], columns[i % columns.size()], values[i], expected[i].value,
            expected[i].bound_in(got.dtype()));
  }
}

std::vector<int64_t> sample_indices(int64_t size, int64_t count) {
  std::vector<int64_t> indices;
  if (size <= count) {
    for (int64_t i = 0; i < size; ++i) indices.push_back(i);
    return indices;
  }
  for (int64_t i = 0; i < count; ++i) {
    // Even spacing, shifted by a varying offset so that not all indices are multiples of a block size.
    const int64_t even = i * (size - 1) / (count - 1);
    const bool inner = 0 < i && i + 1 < count;
    indices.push_back(inner ? std::min(even + i % 7, size - 2) : even);
  }
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

void verify_sum_of_squares(Verifier& verifier, ConstTensorView x, double got) {
  const auto count = static_cast<size_t>(x.num_elements());
  double expected = 0;
  for (const float value : std::span(x.as<float>(), count))
    expected += static_cast<double>(value) * static_cast<double>(value);
  constexpr double kDoubleRounding = 0x1p-53;
  verifier.compare("sum of squares", 0, 0, got, expected,
                   static_cast<double>(count + 2) * kDoubleRounding * expected);
}

std::vector<SamplePoint> sample_points(int64_t rows, int64_t columns, int64_t count) {
  std::vector<SamplePoint> points = {{0, 0}, {0, columns - 1}, {rows - 1, 0}, {rows - 1, columns - 1}};
  const CounterRng rng(11, 0);
  const auto pick = [&](uint64_t index, int64_t size) {
    return std::min(
        size - 1, static_cast<int64_t>(static_cast<double>(rng.uniform(index)) * static_cast<double>(size)));
  };
  while (static_cast<int64_t>(points.size()) < count) {
    const auto index = 2 * static_cast<uint64_t>(points.size());
    points.push_back({pick(index, rows), pick(index + 1, columns)});
  }
  return points;
}

std::vector<double> values_at(ConstTensorView matrix, const std::vector<SamplePoint>& points) {
  std::vector<double> values;
  for (const auto& [row, column] : points) values.push_back(element(matrix, row * matrix.dim(1) + column));
  return values;
}

void verify_product(Verifier& verifier, const Factor& a, const Factor& b, ConstTensorView out,
                    const std::vector<SamplePoint>& points, const std::vector<double>& former) {
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [row, column] = points[i];
    const Expected expected = expected_product(a.row(row), b.row(column), former.empty() ? 0 : former[i]);
    verifier.compare_values("out", out, {&row, 1}, {&column, 1}, {&expected, 1});
  }
}

namespace {

constexpr int64_t kSampledTokens = 12;
constexpr int64_t kSampledHeads = 3;
constexpr int64_t kSampledKeyValueHeads = 2;

// Any implementation may be the AMX one.
WeightErrors weight_errors(ConstTensorView qkv_TQ) {
  return qkv_TQ.dtype() == DType::kBF16 ? kAmxErrors : WeightErrors();
}

}  // namespace

void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT) {
  const std::vector<int64_t> tokens = sample_indices(qkv_TQ.dim(0), kSampledTokens);
  for (const int64_t h : sample_indices(shape.num_heads, kSampledHeads)) {
    const ExpectedAttention head(qkv_TQ, shape, cu_seqlens, h, weight_errors(qkv_TQ));
    std::vector<Expected> o(tokens.size() * static_cast<size_t>(shape.head_dim)), lse;
    for (const int64_t t : tokens) lse.push_back(head.forward(t, &o[lse.size() * shape.head_dim]));
    verifier.compare_values("o", o_THE, tokens, head_columns(shape, h), o);
    if (!lse_HT.empty()) verifier.compare_values("lse", lse_HT, {&h, 1}, tokens, lse);
  }
}

void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ) {
  const int64_t H = shape.num_heads, G = shape.num_key_value_heads, E = shape.head_dim;
  const std::vector<int64_t> tokens = sample_indices(qkv_TQ.dim(0), kSampledTokens);
  const auto head_of = [&](int64_t h) {
    return ExpectedAttentionBackward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, h,
                                     weight_errors(qkv_TQ));
  };
  const std::vector<Expected> zero(tokens.size() * static_cast<size_t>(E));
  for (const int64_t g : sample_indices(G, kSampledKeyValueHeads)) {
    std::vector<Expected> dk = zero, dv = zero;
    for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h) {
      const ExpectedAttentionBackward head = head_of(h);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int64_t s = tokens[i], last = head.last_query(s);
        for (int64_t t = s; t <= last; ++t) head.add_pair(t, s, nullptr, &dk[i * E], &dv[i * E]);
      }
    }
    verifier.compare_values("dk", dqkv_TQ, tokens, head_columns(shape, H + g), dk);
    verifier.compare_values("dv", dqkv_TQ, tokens, head_columns(shape, H + G + g), dv);
  }
  for (const int64_t h : sample_indices(H, kSampledHeads)) {
    const ExpectedAttentionBackward head = head_of(h);
    std::vector<Expected> dq = zero;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t t = tokens[i];
      for (int64_t s = head.first_key(t); s <= t; ++s) head.add_pair(t, s, &dq[i * E], nullptr, nullptr);
    }
    verifier.compare_values("dq", dqkv_TQ, tokens, head_columns(shape, h), dq);
  }
}

}  // namespace tessera
