#include "bench/kernels/verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bench/kernels/random_tensor.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

constexpr double kEps = kFloat32Rounding;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Relative error bound of exp of a float32 argument and the few operations around it.
double exponential_error(double argument) { return (16 + 4 * std::abs(argument)) * kEps; }

constexpr double kSmallestNormal = 0x1p-126;  // smaller gradients may be flushed to zero

// log of the sum of exponentials, and the quantity d of cross_entropy.h.
struct Softmax {
  explicit Softmax(const Row& logits) : max(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0, weighted = 0;
    for (const double x : logits) {
      const double e = std::exp(x - max);
      sum += e;
      if (e > 0) weighted += e * (max - x);
    }
    lse = max + std::log(sum);
    spread = 270 + weighted / sum;
  }

  double max;
  double lse;
  double spread;
};

}  // namespace

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

Row row_of(ConstTensorView matrix, int64_t row) {
  const int64_t width = matrix.num_elements() / matrix.dim(0);
  Row values(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) values[static_cast<size_t>(i)] = element(matrix, row * width + i);
  return values;
}

std::vector<Row> rows_of(ConstTensorView matrix, std::span<const int64_t> rows) {
  std::vector<Row> result;
  for (const int64_t row : rows) result.push_back(row_of(matrix, row));
  return result;
}

void verify_rmsnorm(Verifier& verifier, int64_t row, const Row& x, const Row& w, double eps, const Row& y,
                    double rstd, DType dtype) {
  const auto width = static_cast<double>(x.size());
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double expected_rstd = 1 / std::sqrt(sum / width + eps);
  const double relative = (width + 8) * kEps;
  verifier.compare("rstd", row, 0, rstd, expected_rstd, relative * expected_rstd);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = x[i] * expected_rstd * w[i];
    verifier.compare("y", row, static_cast<int64_t>(i), y[i], expected,
                     (relative + rounding_of(dtype)) * std::abs(expected));
  }
}

void verify_rmsnorm_backward(Verifier& verifier, int64_t row, const Row& dy, const Row& x, const Row& w,
                             double rstd, const Row& former, const Row& dx, DType dtype) {
  const auto width = static_cast<double>(x.size());
  double mean = 0, mean_magnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean += dy[i] * w[i] * x[i] / width;
    mean_magnitude += std::abs(dy[i] * w[i] * x[i]) / width;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const double g = dy[i] * w[i];
    const double before = former.empty() ? 0 : former[i];
    const double expected = before + rstd * (g - x[i] * rstd * rstd * mean);
    const double magnitude = std::abs(rstd) * (std::abs(g) + std::abs(x[i]) * rstd * rstd * mean_magnitude);
    const double bound =
        (width + 16) * kEps * (magnitude + std::abs(before)) + rounding_of(dtype) * std::abs(expected);
    verifier.compare("dx", row, static_cast<int64_t>(i), dx[i], expected, bound);
  }
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

void verify_add(Verifier& verifier, int64_t row, const Row& x, const Row& y, const Row& sum, DType dtype) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = x[i] + y[i];
    verifier.compare("sum", row, static_cast<int64_t>(i), sum[i], expected,
                     (rounding_of(dtype) + kEps) * std::abs(expected));
  }
}

void verify_swiglu(Verifier& verifier, int64_t row, const Row& gate_up, const Row& h, DType dtype) {
  for (size_t i = 0; i < h.size(); ++i) {
    const double gate = gate_up[i], up = gate_up[h.size() + i];
    const double expected = gate * sigmoid(gate) * up;
    verifier.compare("h", row, static_cast<int64_t>(i), h[i], expected,
                     (exponential_error(gate) + rounding_of(dtype)) * std::abs(expected));
  }
}

void verify_swiglu_backward(Verifier& verifier, int64_t row, const Row& dh, const Row& gate_up,
                            const Row& dgate_up, DType dtype) {
  const size_t width = dh.size();
  for (size_t i = 0; i < width; ++i) {
    const double gate = gate_up[i], up = gate_up[width + i];
    const double s = sigmoid(gate);
    const auto column = static_cast<int64_t>(i);
    const double dgate = dh[i] * up * s * (1 + gate * (1 - s));
    const double magnitude = std::abs(dh[i] * up) * s * (1 + std::abs(gate));
    verifier.compare("dgate", row, column, dgate_up[i], dgate,
                     2 * exponential_error(gate) * magnitude + rounding_of(dtype) * std::abs(dgate));
    const double dup = dh[i] * gate * s;
    verifier.compare("dup", row, column, dgate_up[width + i], dup,
                     (exponential_error(gate) + rounding_of(dtype)) * std::abs(dup));
  }
}

void verify_rope(Verifier& verifier, int64_t row, const Row& before, const AttentionShape& shape,
                 int64_t position, const RopeTable& table, bool inverse, const Row& after, DType dtype) {
  const int64_t half = shape.head_dim / 2;
  const float* const cos = table.cos.as<float>() + position * half;
  const float* const sin = table.sin.as<float>() + position * half;
  for (int64_t head = 0; head < shape.num_heads + shape.num_key_value_heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      const double cosine = cos[i];
      const double sine = inverse ? -sin[i] : sin[i];
      const int64_t low = head * shape.head_dim + i;
      const double a = before[static_cast<size_t>(low)], b = before[static_cast<size_t>(low + half)];
      const double bound = 4 * kEps * (std::abs(a) + std::abs(b));
      const double first = a * cosine - b * sine, second = b * cosine + a * sine;
      verifier.compare("qkv", row, low, after[static_cast<size_t>(low)], first,
                       bound + rounding_of(dtype) * std::abs(first));
      verifier.compare("qkv", row, low + half, after[static_cast<size_t>(low + half)], second,
                       bound + rounding_of(dtype) * std::abs(second));
    }
  }
}

void verify_cross_entropy(Verifier& verifier, int64_t row, const Row& logits, int32_t target,
                          double grad_scale, const Row& dlogits, DType dtype) {
  const Softmax softmax(logits);
  for (size_t v = 0; v < logits.size(); ++v) {
    const double p = std::exp(logits[v] - softmax.lse);
    const bool ignored = target == kIgnoredLabel;
    const double expected = ignored ? 0 : grad_scale * (p - (static_cast<int32_t>(v) == target ? 1 : 0));
    const double bound = kEps * std::abs(grad_scale) * p * (softmax.spread + 12 + softmax.max - logits[v]) +
                         (rounding_of(dtype) + kEps) * std::abs(expected) + kSmallestNormal;
    verifier.compare("dlogits", row, static_cast<int64_t>(v), dlogits[v], expected, ignored ? 0 : bound);
  }
}

void verify_chunk_gradient(Verifier& verifier, int64_t row, const Row& logits, double log_sum_exp,
                           int64_t first_column, int32_t target, double grad_scale, const Row& dlogits,
                           DType dtype) {
  const bool ignored = target == kIgnoredLabel;
  for (size_t c = 0; c < logits.size(); ++c) {
    const double p = std::exp(logits[c] - log_sum_exp);
    const double is_target = first_column + static_cast<int64_t>(c) == target ? 1 : 0;
    const double expected = ignored ? 0 : grad_scale * (p - is_target);
    const double bound = std::abs(grad_scale) * p * exponential_error(logits[c] - log_sum_exp) +
                         (rounding_of(dtype) + kEps) * std::abs(expected) + kSmallestNormal;
    verifier.compare("dlogits", row, static_cast<int64_t>(c), dlogits[c], expected, ignored ? 0 : bound);
  }
}

SoftmaxBound softmax_bound(const Row& logits) {
  const Softmax softmax(logits);
  return {softmax.lse, kEps * (softmax.spread + std::abs(softmax.lse))};
}

ExactLoss exact_loss(ConstTensorView logits_RV, std::span<const int32_t> targets) {
  ExactLoss loss;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == kIgnoredLabel) continue;
    const Row logits = row_of(logits_RV, static_cast<int64_t>(row));
    const Softmax softmax(logits);
    loss.sum += softmax.lse - logits[static_cast<size_t>(targets[row])];
    loss.bound += kEps * (softmax.spread + std::abs(softmax.lse));
  }
  return loss;
}

}  // namespace tessera
