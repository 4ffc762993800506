// The formulas of attention.h for one query head in float64, with error bounds.
#pragma once

#include <algorithm>

#include "kernels/attention/attention_shape.h"
#include "kernels/expected.h"

namespace tessera {

// Error of a path beyond float32 arithmetic: weights p and ds rounded before their products, and exp.
struct WeightErrors {
  double rounding = 0;
  double exp = 0;
};
inline constexpr WeightErrors kAmxErrors = {kBf16Eps, 0x1.0p-18};  // attention.h

// Columns of head `head` in a row of heads.
inline std::vector<int64_t> head_columns(const AttentionShape& shape, int64_t head) {
  return range(head * shape.head_dim, (head + 1) * shape.head_dim);
}

// Head `head` of every row, [T, E].
inline std::vector<double> head_of(ConstTensorView rows, const AttentionShape& shape, int64_t head) {
  return values_at(rows, range(0, rows.dim(0)), head_columns(shape, head));
}

// Query head h and the key-value head that it reads.
class ExpectedAttention {
 public:
  ExpectedAttention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                    int64_t h, const WeightErrors& errors)
      : shape_(shape),
        cu_seqlens_(cu_seqlens),
        errors_(errors),
        q_TE_(head_of(qkv_TQ, shape, h)),
        k_TE_(head_of(qkv_TQ, shape, shape.num_heads + h / group())),
        v_TE_(head_of(qkv_TQ, shape, shape.num_heads + shape.num_key_value_heads + h / group())) {}

  // The first key that query t sees, and the last query that sees key s.
  int64_t first_key(int64_t t) const {
    const int64_t begin = *(std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), t) - 1);
    return shape_.sliding_window == 0 ? begin : std::max(begin, t - shape_.sliding_window + 1);
  }
  int64_t last_query(int64_t s) const {
    const int64_t end = *std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), s);
    return (shape_.sliding_window == 0 ? end : std::min(end, s + shape_.sliding_window)) - 1;
  }

  // o_t, E elements. Returns lse_t.
  Expected forward(int64_t t, Expected* o_E) const {
    const int64_t first = first_key(t);
    std::vector<Expected> scores;
    double max = -HUGE_VAL, sum = 0, score_error = 0;
    for (int64_t s = first; s <= t; ++s) {
      scores.push_back(score(t, s));
      max = std::max(max, scores.back().value);
    }
    std::vector<double> weights;
    for (const Expected& score : scores) {
      weights.push_back(std::exp(score.value - max));
      sum += weights.back();
      // The difference from the maximum is rounded too.
      score_error = std::max(score_error, score.bound + kFloatEps * (std::abs(score.value) + std::abs(max)));
    }
    const double terms_error = sum_error(t - first + 1);
    // Errors of exp (4 eps) and of the score enter numerator and denominator; both are sums of n terms.
    // Rounded weights enter only the numerator.
    const double o_error =
        2 * score_error + 2 * terms_error + 12 * kFloatEps + 2 * errors_.exp + errors_.rounding;
    for (int64_t i = 0; i < shape_.head_dim; ++i) {
      double value = 0, magnitude = 0;
      for (int64_t s = first; s <= t; ++s) {
        const double term = weights[static_cast<size_t>(s - first)] / sum * row(v_TE_, s)[i];
        value += term;
        magnitude += std::abs(term);
      }
      o_E[i] = {value, magnitude * o_error};
    }
    // log of a sum with relative error terms_error, added to the maximum.
    return {max + std::log(sum),
            score_error + terms_error + errors_.exp + 3 * kFloatEps * (std::abs(max) + std::log(sum))};
  }

 protected:
  int64_t group() const { return shape_.num_heads / shape_.num_key_value_heads; }
  const double* row(const std::vector<double>& values_TE, int64_t t) const {
    return values_TE.data() + t * shape_.head_dim;
  }
  // The relative error of a sum of n terms, and of a product over the head with the scaling before it.
  static double sum_error(int64_t n) { return static_cast<double>(n + 8) * kFloatEps; }
  double product_error() const { return static_cast<double>(shape_.head_dim + 3) * kFloatEps; }
  // a . b, with sum |a b| for its bound.
  Expected dot(const double* a, const double* b) const {
    Expected product;
    for (int64_t i = 0; i < shape_.head_dim; ++i) {
      product.value += a[i] * b[i];
      product.bound += std::abs(a[i] * b[i]);
    }
    return product;
  }
  Expected score(int64_t t, int64_t s) const {
    const Expected product = dot(row(q_TE_, t), row(k_TE_, s));
    const double scale = shape_.scale;
    const Expected score = {scale * product.value, std::abs(scale) * product.bound * product_error()};
    if (shape_.softcap == 0) return score;
    // The cap never amplifies an error; tanh, its argument and the product with c add roundings.
    const double capped = shape_.softcap * std::tanh(score.value / shape_.softcap);
    return {capped, score.bound + 8 * kFloatEps * std::abs(capped)};
  }
  // The derivative of the soft cap, from the score after it.
  Expected cap_slope(const Expected& score) const {
    if (shape_.softcap == 0) return {1, 0};
    const double t = score.value / shape_.softcap;
    return {1 - t * t, 2 * std::abs(t) * score.bound / shape_.softcap + 4 * kFloatEps};
  }

  AttentionShape shape_;
  std::span<const int32_t> cu_seqlens_;
  WeightErrors errors_;
  std::vector<double> q_TE_, k_TE_, v_TE_;
};

// Its gradient for the given do, o and lse, with whatever rounding they already have.
class ExpectedAttentionBackward : public ExpectedAttention {
 public:
  ExpectedAttentionBackward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                            ConstTensorView lse_HT, const AttentionShape& shape,
                            std::span<const int32_t> cu_seqlens, int64_t h, const WeightErrors& errors)
      : ExpectedAttention(qkv_TQ, shape, cu_seqlens, h, errors),
        do_TE_(head_of(do_THE, shape, h)),
        lse_T_(rows_of(lse_HT, {&h, 1})) {
    const std::vector<double> o_TE = head_of(o_THE, shape, h);
    for (int64_t t = 0; t < lse_HT.dim(1); ++t) delta_T_.push_back(dot(row(o_TE, t), row(do_TE_, t)));
  }

  // Adds what query t and key s contribute to dq_t, dk_s and dv_s, E elements each; null = not wanted.
  void add_pair(int64_t t, int64_t s, Expected* dq_E, Expected* dk_E, Expected* dv_E) const {
    const double lse = lse_T_[static_cast<size_t>(t)];
    const Expected& delta = delta_T_[static_cast<size_t>(t)];
    const Expected score = this->score(t, s), dp = dot(row(do_TE_, t), row(v_TE_, s));
    const double p = std::exp(score.value - lse), ds = p * (dp.value - delta.value);
    const double p_error =
        score.bound + kFloatEps * (std::abs(score.value) + std::abs(lse) + 4) + errors_.exp;
    const double ds_error =
        std::abs(ds) * (p_error + 4 * kFloatEps) + p * product_error() * (dp.bound + delta.bound);
    const Expected slope = cap_slope(score);
    const double dproduct = ds * slope.value;
    const double dproduct_error = ds_error * slope.value + std::abs(ds) * slope.bound;
    const auto add = [&](Expected* sum_E, int64_t num_terms, double weight, double weight_error,
                         const std::vector<double>& values_TE, int64_t at) {
      const double bound = weight_error + std::abs(weight) * (sum_error(num_terms) + errors_.rounding);
      for (int64_t i = 0; sum_E != nullptr && i < shape_.head_dim; ++i) {
        sum_E[i].value += weight * row(values_TE, at)[i];
        sum_E[i].bound += bound * std::abs(row(values_TE, at)[i]);
      }
    };
    const double scale = shape_.scale;
    const int64_t num_queries = (last_query(s) - s + 1) * group();
    add(dq_E, t - first_key(t) + 1, scale * dproduct, std::abs(scale) * dproduct_error, k_TE_, s);
    add(dk_E, num_queries, scale * dproduct, std::abs(scale) * dproduct_error, q_TE_, t);
    add(dv_E, num_queries, p, p * p_error, do_TE_, t);
  }

 private:
  std::vector<double> do_TE_, lse_T_;
  std::vector<Expected> delta_T_;  // bound: sum |o do|
};

}  // namespace tessera
