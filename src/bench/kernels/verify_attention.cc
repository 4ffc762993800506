#include "bench/kernels/verify_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "bench/kernels/random_tensor.h"

namespace tessera {
namespace {

constexpr int64_t kSampledTokens = 12;
constexpr int64_t kSampledHeads = 3;

// The inputs in float64 and the quantities of attention.h for one pair of query t and key s.
class Problem {
 public:
  Problem(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens)
      : qkv_(qkv_TQ), shape_(shape), cu_seqlens_(cu_seqlens) {}

  int64_t num_tokens() const { return qkv_.dim(0); }
  const AttentionShape& shape() const { return shape_; }
  // Relative error of rounding an intermediate to the type of the activations.
  double rounding() const { return qkv_.dtype() == DType::kBF16 ? 0x1p-8 : 0; }
  // Relative error of a product over the head plus scaling.
  double product_error() const { return static_cast<double>(shape_.head_dim + 8) * kFloatEps; }

  int64_t key_head(int64_t h) const { return h / (shape_.num_heads / shape_.num_key_value_heads); }
  double q(int64_t t, int64_t h, int64_t i) const { return at(t, h, i); }
  double k(int64_t s, int64_t h, int64_t i) const { return at(s, shape_.num_heads + key_head(h), i); }
  double v(int64_t s, int64_t h, int64_t i) const {
    return at(s, shape_.num_heads + shape_.num_key_value_heads + key_head(h), i);
  }

  // The first key that query t sees, and the last query after key s that sees s.
  int64_t first_key(int64_t t) const {
    const int64_t begin = *(std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), t) - 1);
    return shape_.sliding_window == 0 ? begin : std::max(begin, t - shape_.sliding_window + 1);
  }
  int64_t last_query(int64_t s) const {
    const int64_t end = *std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), s);
    return (shape_.sliding_window == 0 ? end : std::min<int64_t>(end, s + shape_.sliding_window)) - 1;
  }

  struct Score {
    double value = 0;
    double bound = 0;
  };
  Score score(int64_t t, int64_t s, int64_t h) const {
    double magnitude = 0;
    Score result;
    for (int64_t i = 0; i < shape_.head_dim; ++i) {
      const double term = shape_.scale * q(t, h, i) * k(s, h, i);
      result.value += term;
      magnitude += std::abs(term);
    }
    result.bound = product_error() * magnitude;
    return result;
  }

 private:
  double at(int64_t t, int64_t head, int64_t i) const {
    return element(qkv_, t * shape_.qkv_width() + head * shape_.head_dim + i);
  }

  ConstTensorView qkv_;
  AttentionShape shape_;
  std::span<const int32_t> cu_seqlens_;
};

void verify_query(Verifier& verifier, const Problem& problem, int64_t t, int64_t h, ConstTensorView o_THE,
                  ConstTensorView lse_HT) {
  const int64_t E = problem.shape().head_dim, first = problem.first_key(t);
  std::vector<Problem::Score> scores;
  double max = -HUGE_VAL, score_error = 0, sum = 0;
  for (int64_t s = first; s <= t; ++s) {
    scores.push_back(problem.score(t, s, h));
    max = std::max(max, scores.back().value);
  }
  for (const Problem::Score& score : scores) {
    sum += std::exp(score.value - max);
    score_error =
        std::max(score_error, score.bound + 2 * kFloatEps * (std::abs(score.value) + std::abs(max)));
  }
  const double sum_error = static_cast<double>(t - first + 16) * kFloatEps;
  if (!lse_HT.empty()) {
    const double lse = max + std::log(sum);
    verifier.compare(
        "lse", h, t, element(lse_HT, h * problem.num_tokens() + t), lse,
        score_error + sum_error + problem.rounding() + 4 * kFloatEps * (std::abs(max) + std::log(sum)));
  }
  const double relative = 2 * score_error + 2 * sum_error + 16 * kFloatEps + 2 * problem.rounding();
  for (int64_t i = 0; i < E; ++i) {
    double value = 0, magnitude = 0;
    for (int64_t s = first; s <= t; ++s) {
      const double p = std::exp(scores[static_cast<size_t>(s - first)].value - max) / sum;
      value += p * problem.v(s, h, i);
      magnitude += p * std::abs(problem.v(s, h, i));
    }
    const int64_t column = h * E + i;
    verifier.compare("o", t, column, element(o_THE, t * o_THE.dim(1) + column), value,
                     relative * magnitude + problem.rounding() * std::abs(value));
  }
}

// p and ds of one pair, with the error bounds of the kernel.
struct PairGradient {
  double p, p_error, ds, ds_error;
};

class BackwardProblem {
 public:
  BackwardProblem(const Problem& problem, ConstTensorView do_THE, ConstTensorView o_THE,
                  ConstTensorView lse_HT)
      : problem_(problem), do_(do_THE), o_(o_THE), lse_(lse_HT) {}

  double d_o(int64_t t, int64_t h, int64_t i) const {
    return element(do_, t * do_.dim(1) + h * problem_.shape().head_dim + i);
  }

  PairGradient pair(int64_t t, int64_t s, int64_t h) const {
    const int64_t E = problem_.shape().head_dim;
    double delta = 0, dp = 0, magnitude = 0;
    for (int64_t i = 0; i < E; ++i) {
      const double g = d_o(t, h, i), o = element(o_, t * o_.dim(1) + h * E + i);
      delta += g * o;
      dp += g * problem_.v(s, h, i);
      magnitude += std::abs(g * o) + std::abs(g * problem_.v(s, h, i));
    }
    const Problem::Score score = problem_.score(t, s, h);
    const double lse = element(lse_, h * problem_.num_tokens() + t);
    PairGradient result;
    result.p = std::exp(score.value - lse);
    result.p_error = result.p * (score.bound + kFloatEps * (std::abs(score.value) + std::abs(lse) + 16) +
                                 problem_.rounding());
    result.ds = result.p * (dp - delta);
    result.ds_error = result.p_error * std::abs(dp - delta) +
                      result.p * problem_.product_error() * magnitude +
                      problem_.rounding() * std::abs(result.ds);
    return result;
  }

 private:
  const Problem& problem_;
  ConstTensorView do_, o_, lse_;
};

void verify_dq(Verifier& verifier, const Problem& problem, const BackwardProblem& backward, int64_t t,
               int64_t h, ConstTensorView dqkv_TQ) {
  const int64_t E = problem.shape().head_dim;
  const double scale = problem.shape().scale;
  const double sum_error = static_cast<double>(t - problem.first_key(t) + 16) * kFloatEps;
  std::vector<double> value(static_cast<size_t>(E)), bound(static_cast<size_t>(E));
  for (int64_t s = problem.first_key(t); s <= t; ++s) {
    const PairGradient pair = backward.pair(t, s, h);
    for (int64_t i = 0; i < E; ++i) {
      const double k = problem.k(s, h, i);
      value[static_cast<size_t>(i)] += scale * pair.ds * k;
      bound[static_cast<size_t>(i)] += scale * std::abs(k) * (pair.ds_error + sum_error * std::abs(pair.ds));
    }
  }
  for (int64_t i = 0; i < E; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t column = h * E + i;
    verifier.compare("dq", t, column, element(dqkv_TQ, t * dqkv_TQ.dim(1) + column), value[at],
                     bound[at] + problem.rounding() * std::abs(value[at]));
  }
}

void verify_dk_dv(Verifier& verifier, const Problem& problem, const BackwardProblem& backward, int64_t s,
                  int64_t g, ConstTensorView dqkv_TQ) {
  const AttentionShape& shape = problem.shape();
  const int64_t E = shape.head_dim, group = shape.num_heads / shape.num_key_value_heads;
  const double sum_error = static_cast<double>((problem.last_query(s) - s) * group + 16) * kFloatEps;
  std::vector<double> dk(static_cast<size_t>(E)), dk_bound(dk), dv(dk), dv_bound(dk);
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t t = s; t <= problem.last_query(s); ++t) {
      const PairGradient pair = backward.pair(t, s, h);
      for (int64_t i = 0; i < E; ++i) {
        const auto at = static_cast<size_t>(i);
        const double q = shape.scale * problem.q(t, h, i), d_o = backward.d_o(t, h, i);
        dk[at] += pair.ds * q;
        dk_bound[at] += std::abs(q) * (pair.ds_error + sum_error * std::abs(pair.ds));
        dv[at] += pair.p * d_o;
        dv_bound[at] += std::abs(d_o) * (pair.p_error + sum_error * pair.p);
      }
    }
  }
  for (int64_t i = 0; i < E; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t k_column = (shape.num_heads + g) * E + i;
    const int64_t v_column = k_column + shape.num_key_value_heads * E;
    const int64_t row = s * dqkv_TQ.dim(1);
    verifier.compare("dk", s, k_column, element(dqkv_TQ, row + k_column), dk[at],
                     dk_bound[at] + problem.rounding() * std::abs(dk[at]));
    verifier.compare("dv", s, v_column, element(dqkv_TQ, row + v_column), dv[at],
                     dv_bound[at] + problem.rounding() * std::abs(dv[at]));
  }
}

}  // namespace

void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT) {
  const Problem problem(qkv_TQ, shape, cu_seqlens);
  for (const int64_t t : sample_indices(problem.num_tokens(), kSampledTokens)) {
    for (const int64_t h : sample_indices(shape.num_heads, kSampledHeads)) {
      verify_query(verifier, problem, t, h, o_THE, lse_HT);
    }
  }
}

void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ) {
  const Problem problem(qkv_TQ, shape, cu_seqlens);
  const BackwardProblem backward(problem, do_THE, o_THE, lse_HT);
  for (const int64_t t : sample_indices(problem.num_tokens(), kSampledTokens)) {
    for (const int64_t h : sample_indices(shape.num_heads, kSampledHeads)) {
      verify_dq(verifier, problem, backward, t, h, dqkv_TQ);
    }
    for (const int64_t g : sample_indices(shape.num_key_value_heads, 2)) {
      verify_dk_dv(verifier, problem, backward, t, g, dqkv_TQ);
    }
  }
}

}  // namespace tessera
